//! What a pass tells those who measure it.
//!
//! A watched pass computes the same and takes longer: nothing here decides anything.

#[cfg(feature = "opencl")]
use crate::port::opencl::Event;

/// A part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What comes before the first layer.
    Start,
    /// A layer's first norm, and its queries, keys and values.
    Project,
    /// Norms of heads, rotation, new keys and values into chunks.
    Heads,
    /// Attention over the chunks.
    Attention,
    /// The output projection of attention.
    Output,
    /// The second norm and the feed-forward part.
    FeedForward,
    /// The last norm and the logits, or what is picked from them.
    Head,
}

/// Hears of a pass as it goes, on the thread that called for it.
pub trait Watch: Sync {
    /// The processor has done a part.
    fn computed(&self, part: Part);

    /// A command of a part was enqueued; the event knows when it runs, where the accelerator was
    /// opened for measuring.
    #[cfg(feature = "opencl")]
    fn enqueued(&self, part: Part, kernel: &'static str, event: Event);
}
