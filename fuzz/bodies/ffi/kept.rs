//! Contexts that outlive their handle: what their owner remembers, and the calls that keep them.
//!
//! A tag is given once, so that it means one content. What is asked of a recovery:
//!
//! * A tag that no checkpoint had is refused, and the wrong one for what is there is a mismatch.
//! * The last whole checkpoint is found, unless bytes were damaged, a callback failed, or somebody
//!   wrote to the file who had not recovered from it.
//! * Nothing of it is lost then.
//! * What is found has the tokens of the checkpoint, and of values none that was not written.

use super::super::reader::Reader;
use super::plain::table;
use super::world::size_of_u32;
use super::{BAD_STATE, BYTES, INVALID, Program};
use mzcache::ffi::checkpoint::{
    MzCheckpointReport, MzRecovered, MzTag, mz_checkpoint, mz_recover, mz_tag_tokens,
};
use mzcache::ffi::types::{MzErr, MzHandle, MzStats, MzStop};
use mzcache::ffi::{mz_lost, mz_restore, mz_stats_get};
use std::collections::BTreeSet;
use std::ffi::c_int;
use std::mem::zeroed;
use std::ptr;

/// Tokens whose values are known, by layer.
type Values = BTreeSet<(u32, u32)>;

/// What the owner knows of contexts: of the one in the handle, and of those in the swap file.
#[derive(Default)]
pub struct Kept {
    tokens: u32,
    /// Written and committed since.
    known: Values,
    /// Written in a pass that has not ended.
    pending: Values,
    attempts: Vec<Attempt>,
    /// The attempt that the next handle must find.
    durable: Option<usize>,
    /// Refusals may be for what was damaged.
    is_damaged: bool,
    /// The codec, where nothing is odd about the configuration.
    setup: Option<u32>,
    /// No pass began yet, and nothing was recovered.
    is_fresh: bool,
    /// The file holds what this handle kept or recovered, if anything.
    is_owner: bool,
    /// Of what was recovered, chunks may have been replaced since.
    is_outdated: bool,
}

/// A checkpoint that was asked for.
struct Attempt {
    tag: MzTag,
    setup: Option<u32>,
    tokens: u32,
    known: Values,
    is_whole: bool,
    is_outdated: bool,
}

impl Kept {
    /// The next handle, on what the last one left.
    pub fn open(&mut self, setup: Option<u32>, has_written: bool) {
        if has_written && !self.is_owner {
            self.durable = None;
        }
        let Kept { attempts, durable, is_damaged, .. } = std::mem::take(self);
        *self = Kept { attempts, durable, is_damaged, setup, is_fresh: true, ..Kept::default() };
    }

    pub fn begin(&mut self, result: c_int) -> c_int {
        self.is_fresh = false;
        if result == 0 {
            self.pending.clear();
        }
        result
    }

    pub fn write(&mut self, layer: u32, token: u32) {
        self.pending.insert((layer, token));
    }

    pub fn commit(&mut self, result: c_int, tokens: u32) {
        if result == 0 {
            self.tokens = tokens;
            self.known.append(&mut self.pending);
            self.known.retain(|(_, token)| *token < tokens);
        } else if result == MzErr::Cancelled as c_int {
            self.pending.clear();
        }
    }

    pub fn truncate(&mut self, result: c_int, tokens: u32) -> c_int {
        if result == 0 {
            self.tokens = self.tokens.min(tokens);
            self.known.retain(|(_, token)| *token < tokens);
            self.pending.clear();
        }
        result
    }

    /// Whether a value must be there.
    pub fn knows(&self, layer: u32, token: u32) -> bool {
        self.known.contains(&(layer, token))
    }

    /// A checkpoint is asked for, under a tag of its own.
    fn attempt(&mut self) -> MzTag {
        let tag = tag(self.attempts.len());
        self.attempts.push(Attempt {
            tag,
            setup: self.setup,
            tokens: self.tokens,
            known: self.known.clone(),
            is_whole: false,
            is_outdated: self.is_outdated,
        });
        let setup = self.setup;
        // Another configuration wipes what it finds.
        self.durable = self.durable.filter(|durable| self.attempts[*durable].setup == setup);
        tag
    }

    /// That checkpoint is there.
    fn keep(&mut self, report: Option<&MzCheckpointReport>) {
        let is_whole = report.is_some_and(|report| report.stop == MzStop::Reached as u32);
        let last = self.attempts.len() - 1;
        self.durable = is_whole.then_some(last);
        self.attempts[last].is_whole = is_whole;
        self.is_owner |= is_whole;
        if let Some(report) = report {
            assert!(report.stop <= MzStop::Cancelled as u32 && report.reserved == 0);
            assert!(!is_whole || report.durable_tokens == self.tokens);
        }
    }

    /// A handle takes over what an attempt left.
    fn recover(
        &mut self,
        index: usize,
        tokens: u32,
        recovered: Option<&MzRecovered>,
        has_written: bool,
    ) {
        let attempt = &mut self.attempts[index];
        assert!(tokens <= attempt.tokens && (!attempt.is_whole || tokens == attempt.tokens));
        if let Some(recovered) = recovered {
            assert!(recovered.tokens == tokens && recovered.reserved == 0);
            // Damage of chunks is found when they are read.
            assert!(!attempt.is_whole || recovered.lost == u32::MAX);
        }
        let is_owned = self.is_owner || !has_written;
        attempt.is_outdated |= self.durable != Some(index) || !is_owned;
        self.is_outdated = attempt.is_outdated;
        self.tokens = tokens;
        self.known = attempt.known.iter().copied().filter(|(_, token)| *token < tokens).collect();
        self.durable = Some(index).filter(|_| attempt.is_whole);
        self.is_owner = true;
        self.is_fresh = false;
    }

    /// What a recovery must answer, where that is known.
    fn answer(&self, index: Option<usize>, has_written: bool) -> Option<c_int> {
        if !self.is_fresh || has_written && !self.is_owner {
            return None;
        }
        let durable = self.durable?;
        let is_alike = self.setup? == self.attempts[durable].setup?;
        match index {
            Some(index) if index == durable && is_alike => Some(0),
            // An older one may be there.
            Some(_) if is_alike => None,
            _ => (!self.is_damaged).then_some(MzErr::Mismatch as c_int),
        }
    }
}

/// The tag of a context, by the library.
fn tag(number: usize) -> MzTag {
    let (mut tag, token) = (MzTag::default(), u32::try_from(number).unwrap());
    // SAFETY: the tag and the token are live.
    assert_eq!(unsafe { mz_tag_tokens(&mut tag, &token, 1) }, 0);
    tag
}

impl Program {
    /// # Safety
    ///
    /// As for the library's functions: the handle is one or is refused.
    pub(super) unsafe fn checkpoint(
        &mut self,
        handle: *mut MzHandle,
        reader: &mut Reader<'_>,
    ) -> c_int {
        let deadline = reader.pick(&BYTES);
        // SAFETY: zeroes are a table.
        let (tables, report, is_wrong) = table::<MzCheckpointReport>(reader, unsafe { zeroed() });
        let tag = self.kept.attempt();
        // SAFETY: the caller's promise; the report is live, null, or made to be refused.
        let result = unsafe { mz_checkpoint(handle, tag, deadline, report) };
        assert!(!is_wrong || report.is_null() || result < 0);
        if result == 0 {
            self.kept.keep((!report.is_null()).then_some(&tables[0]));
        }
        result
    }

    /// # Safety
    ///
    /// As for `checkpoint`.
    pub(super) unsafe fn recover(
        &mut self,
        handle: *mut MzHandle,
        reader: &mut Reader<'_>,
    ) -> c_int {
        // Counted from the last one.
        let index = self.kept.attempts.len().checked_sub(1 + usize::from(reader.byte()));
        // SAFETY: zeroes are a table.
        let (tables, place, is_wrong) = table::<MzRecovered>(reader, unsafe { zeroed() });
        let tag = index.map_or_else(|| tag(1 << 20), |index| self.kept.attempts[index].tag);
        let (world, until_fault) = (&self.world, self.world.until_fault.get());
        let is_blank =
            world.swap.borrow().is_empty() && self.kept.setup.is_some() && self.kept.is_fresh;
        let answer = self.kept.answer(index, world.has_written.get());
        // SAFETY: the caller's promise; the table is live, null, or made to be refused.
        let result = unsafe { mz_recover(handle, tag, place) };
        assert!(!is_wrong || place.is_null() || result < 0);
        let is_refused = tables[0].struct_bytes < size_of_u32::<MzRecovered>() || is_wrong;
        let has_failed = world.is_poisoned.get() || until_fault > 0 && world.until_fault.get() == 0;
        if handle == world.handle && (!is_refused || place.is_null()) && !has_failed {
            assert!(answer.is_none_or(|answer| answer == result), "{result}, not {answer:?}");
            assert!(!is_blank || result == MzErr::BadMagic as c_int, "{result}");
        }
        if result == 0 {
            assert_eq!(self.kept.tokens, 0, "there was a context");
            let index = index.expect("a tag that was given to a checkpoint");
            // SAFETY: the handle is open.
            let tokens = unsafe { tokens(handle) };
            let recovered = (!place.is_null()).then_some(&tables[0]);
            self.kept.recover(index, tokens, recovered, world.has_written.get());
        }
        result
    }

    /// The process ends, and the next one finds the swap file.
    pub(super) fn reopen(&mut self, reader: &mut Reader<'_>) {
        self.close();
        self.world.handle = ptr::null_mut();
        self.open(reader);
    }

    /// Nothing is lost but by damage.
    ///
    /// # Safety
    ///
    /// The handle is open.
    pub(super) unsafe fn look_for_losses(&self) {
        self.world.until_fault.set(0);
        // SAFETY: the caller's promise.
        let lost = unsafe {
            mz_restore(self.world.handle);
            mz_lost(self.world.handle, &mut 0)
        };
        let may_lose =
            self.kept.is_damaged || self.kept.is_outdated || self.world.is_poisoned.get();
        assert!(lost == 0 || may_lose);
    }

    /// Bits of the swap file change.
    pub(super) fn damage(&mut self, reader: &mut Reader<'_>) {
        let at = usize::from(u16::from_le_bytes([reader.byte(), reader.byte()])) * 8;
        let at = at + usize::from(reader.byte() % 8);
        let bits = reader.byte().max(1);
        let mut swap = self.world.swap.borrow_mut();
        let bytes = swap.len().max(1);
        if let Some(byte) = swap.get_mut(at % bytes) {
            *byte ^= bits;
            self.kept.durable = None;
            self.kept.is_damaged = true;
        }
    }

    /// The calls on a handle that was closed.
    ///
    /// # Safety
    ///
    /// The handle's memory is still there.
    pub(super) unsafe fn outlive(handle: *mut MzHandle) {
        // SAFETY: the caller's promise.
        unsafe {
            assert_eq!(mz_checkpoint(handle, tag(0), 0, ptr::null_mut()), BAD_STATE);
            assert_eq!(mz_recover(handle, tag(0), ptr::null_mut()), BAD_STATE);
        }
    }
}

/// # Safety
///
/// The handle is open.
unsafe fn tokens(handle: *mut MzHandle) -> u32 {
    // SAFETY: zeroes are a table.
    let mut stats: MzStats = unsafe { zeroed() };
    stats.struct_bytes = size_of_u32::<MzStats>();
    // SAFETY: the caller's promise; the table is live.
    assert_eq!(unsafe { mz_stats_get(handle, &mut stats) }, 0);
    stats.tokens
}

/// Tokens in two parts give the tag of the whole; what is no tag, or are no tokens, is refused.
pub fn tag_tokens(reader: &mut Reader<'_>) -> c_int {
    let tokens = [1, u32::MAX, 7, reader.byte().into()];
    let cut = usize::from(reader.byte()) % 5;
    let (mut tags, first) = ([MzTag::default(); 2], tokens.as_ptr());
    let place = tags.as_mut_ptr();
    let (place, first, count) = match reader.byte() {
        1 => (ptr::null_mut(), first, 4),
        2 => (place.wrapping_byte_add(1), first, 4),
        3 => (place, ptr::null(), 4),
        4 => (place, first.wrapping_byte_add(2), 3),
        5 => (place, first, usize::MAX),
        6 => (place, first, usize::MAX / 4),
        _ => {
            // SAFETY: the tags are live, and so are the tokens.
            let parts = unsafe {
                let second = tokens[cut..].as_ptr();
                let whole = mz_tag_tokens(place.wrapping_add(1), first, 4);
                [whole, mz_tag_tokens(place, first, cut), mz_tag_tokens(place, second, 4 - cut)]
            };
            assert!(parts == [0; 3] && tags[0] == tags[1] && tags[0] != MzTag::default());
            return 0;
        }
    };
    // SAFETY: one of the pointers, or the count, is made to be refused.
    let result = unsafe { mz_tag_tokens(place, first, count) };
    assert!(result == INVALID && tags == [MzTag::default(); 2]);
    result
}
