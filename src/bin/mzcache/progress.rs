//! Progress bars on the error stream, only where a person looks at it.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Whether long work may draw bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bars {
    /// On a terminal; nothing where the error stream is a file or a pipe.
    Auto,
    /// Never (`--quiet`).
    Hidden,
}

impl Bars {
    /// A bar over `total` bytes.
    pub fn bytes(self, title: &str, total: u64) -> ProgressBar {
        self.bar(title, total, "{bytes}/{total_bytes} {bytes_per_sec} {eta}")
    }

    /// A bar over `total` steps, for example tokens.
    pub fn steps(self, title: &str, total: u64) -> ProgressBar {
        self.bar(title, total, "{pos}/{len} {eta}")
    }

    fn bar(self, title: &str, total: u64, figures: &str) -> ProgressBar {
        let target = match self {
            Bars::Auto => ProgressDrawTarget::stderr(),
            Bars::Hidden => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        // A template that does not parse would cost the looks of the bar, not the work.
        if let Ok(style) = ProgressStyle::with_template(&format!("{{msg}} {{wide_bar}} {figures}"))
        {
            bar.set_style(style);
        }
        bar.with_message(title.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_bars_still_count() {
        let bar = Bars::Hidden.bytes("writing", 10);
        bar.inc(4);
        assert!(bar.is_hidden());
        assert_eq!((bar.position(), bar.length()), (4, Some(10)));
        assert_eq!(Bars::Hidden.steps("tokens", 3).length(), Some(3));
    }
}
