//! What the library keeps in the caller's memory, and who is inside.
//!
//! ```text
//! not open -> open, n users inside -> closed          (inside: 0.. -> CLOSED)
//! ```
//!
//! Invariant: an object is used only between `open` and `end`; `shut` waits for nobody, it refuses
//! while somebody is inside. A word that depends on the object's own address and kind tells it from
//! other memory, so a pointer to something else, to an object that was copied, or to one that was
//! closed is refused as long as the memory is there.

use crate::error::{Code, Error, Result};
use crate::sync::Word;
use core::ops::Deref;

/// Users inside, for an object that takes none any more.
const CLOSED: u32 = 1 << 31;

/// What every object begins with.
#[repr(C)]
pub(super) struct Head {
    /// First, so that it is what is looked at before anything else is believed.
    magic: Word,
    inside: Word,
}

/// Something in the caller's memory.
///
/// # Safety
///
/// The type is `repr(C)` and begins with a [`Head`].
pub(super) unsafe trait Object: Sized + Sync + 'static {
    /// What an open one begins with, mixed with its address.
    const MAGIC: u32;
    /// What C calls it.
    const NAME: &'static str;
    /// For errors, when it is not open.
    const NOT_OPEN: &'static str;
    /// For errors, when others are inside.
    const BUSY: &'static str;

    /// Its head.
    fn head(&self) -> &Head {
        // SAFETY: the object begins with it.
        unsafe { &*core::ptr::from_ref(self).cast::<Head>() }
    }

    /// From now on it is found at its address, which it must not leave.
    fn open(&self) {
        self.head().magic.store(magic_at(core::ptr::from_ref(self)));
    }

    /// Nobody can come in any more, if nobody is inside.
    fn shut(&self) -> Result<()> {
        match self.head().inside.replace(0, CLOSED) {
            true => Ok(()),
            false => Err(Error::new(Code::BadState, Self::BUSY)),
        }
    }

    /// Takes `shut` back.
    fn reopen(&self) {
        self.head().inside.store(0);
    }

    /// After `shut`: it is not found any more.
    fn end(&self) {
        self.head().magic.store(0);
    }
}

impl Head {
    /// Of an object that is not open yet.
    pub(super) fn new() -> Self {
        Head { magic: Word::new(0), inside: Word::new(0) }
    }
}

fn magic_at<T: Object>(object: *const T) -> u32 {
    let address = object.addr() as u64;
    let folded = (address >> 32 ^ address) & u64::from(u32::MAX);
    T::MAGIC ^ u32::try_from(folded).unwrap_or(0)
}

/// An open object at that address, or an error.
///
/// # Safety
///
/// If the pointer is not null and aligned, a `u32` can be read there; and if that is the word of an
/// open object, its memory is as the library left it.
pub(super) unsafe fn find<T: Object>(object: *const T) -> Result<&'static T> {
    if object.is_null() || !object.is_aligned() {
        return Err(Error::new(Code::InvalidArgument, T::NAME).with(object.addr()));
    }
    // SAFETY: not null and aligned; the caller promises the rest. An object begins with this word.
    let magic = unsafe { &*object.cast::<Word>() };
    if magic.load() != magic_at(object) {
        return Err(Error::new(Code::BadState, T::NOT_OPEN));
    }
    // SAFETY: the word says that this is an object, which the caller promises is true.
    Ok(unsafe { &*object })
}

/// Somebody inside an object; `shut` refuses until it is dropped.
pub(super) struct Visit<T: Object>(&'static T);

impl<T: Object> Visit<T> {
    /// Goes in.
    ///
    /// # Safety
    ///
    /// As for [`find`].
    pub(super) unsafe fn enter(object: *const T) -> Result<Self> {
        // SAFETY: the caller's promise.
        let object = unsafe { find(object) }?;
        let inside = &object.head().inside;
        loop {
            let users = inside.load();
            if users >= CLOSED - 1 {
                return Err(Error::new(Code::BadState, T::NOT_OPEN));
            }
            if inside.replace(users, users + 1) {
                return Ok(Visit(object));
            }
        }
    }

    /// The object, for as long as something of it may be kept that `shut` or its caller looks for.
    pub(super) fn object(&self) -> &'static T {
        self.0
    }
}

impl<T: Object> Deref for Visit<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

impl<T: Object> Drop for Visit<T> {
    fn drop(&mut self) {
        self.0.head().inside.decrement();
    }
}
