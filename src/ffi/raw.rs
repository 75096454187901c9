//! Pointers from C, made into values and references once.
//!
//! A pointer from C is an allegation: null, alignment, wrap-around and the size that a table says
//! it has are checked here; that memory is there at all only the caller can know, and every
//! `unsafe fn` here passes that promise on. Nothing here knows what the values mean.

use crate::error::{Code, Error, Result};
#[cfg(feature = "host")]
use core::ffi::{CStr, c_char};
use core::marker::PhantomData;
use core::mem::{MaybeUninit, align_of, size_of};
use core::ptr;

/// Longest table believed in: a caller who forgot `struct_bytes` is told so, and no wild tail read.
const TABLE_BYTES_MAX: usize = 1024;
/// Longer than any path.
#[cfg(feature = "host")]
const TEXT_BYTES_MAX: usize = 4097;

/// A type that begins with `uint32_t struct_bytes` and may grow at its end.
///
/// # Safety
///
/// The type is `repr(C)`, begins with a `u32`, has no padding, and admits every bit pattern.
pub(super) unsafe trait Table: Copy {
    /// The type's name in C, for errors.
    const NAME: &'static str;
    /// Its size in the first version that had it.
    const FIRST_BYTES: usize;

    /// Its size in this version, as `struct_bytes` holds it.
    fn own_bytes() -> u32 {
        const { assert!(size_of::<Self>() <= TABLE_BYTES_MAX) };
        u32::try_from(size_of::<Self>()).unwrap_or(u32::MAX)
    }
}

/// Not null, aligned for T, and `count` of them do not wrap around.
fn check<T>(pointer: *const T, count: usize, what: &'static str) -> Result<()> {
    let refused = Error::new(Code::InvalidArgument, what);
    let address = pointer.addr();
    if address == 0 {
        return Err(refused);
    }
    let bytes = size_of::<T>().checked_mul(count).filter(|bytes| isize::try_from(*bytes).is_ok());
    let end = bytes.and_then(|bytes| address.checked_add(bytes));
    if end.is_none() || !address.is_multiple_of(align_of::<T>()) {
        return Err(refused.with(address));
    }
    Ok(())
}

/// The size that a table says it has.
///
/// # Safety
///
/// If the pointer is not null and aligned, a `u32` can be read there.
unsafe fn struct_bytes<T: Table>(table: *const T) -> Result<usize> {
    check(table, 1, T::NAME)?;
    // SAFETY: not null and aligned, checked above; the caller promises the rest.
    let bytes = unsafe { table.cast::<u32>().read() } as usize;
    if !(T::FIRST_BYTES..=TABLE_BYTES_MAX).contains(&bytes) {
        return Err(Error::new(Code::InvalidArgument, T::NAME).with(bytes));
    }
    Ok(bytes)
}

/// A table from C. Fields that its author did not know are 0; fields that this version does not
/// know must be 0.
///
/// # Safety
///
/// If the pointer is not null and aligned, the table is readable for as many bytes as it says.
pub(super) unsafe fn read<T: Table>(table: *const T) -> Result<T> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { struct_bytes(table) }?;
    let known = bytes.min(size_of::<T>());
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: `known` bytes are readable (the caller's promise) and at most the size of the value,
    // which is new.
    unsafe { ptr::copy_nonoverlapping(table.cast::<u8>(), value.as_mut_ptr().cast(), known) };
    // SAFETY: the table is readable up to `bytes`, and bytes have no alignment.
    let tail = unsafe { core::slice::from_raw_parts(table.cast::<u8>().add(known), bytes - known) };
    if tail.iter().any(|byte| *byte != 0) {
        return Err(Error::new(Code::Unsupported, T::NAME).with(bytes));
    }
    // SAFETY: every byte was zeroed or copied, and a Table admits every bit pattern.
    Ok(unsafe { value.assume_init() })
}

/// As [`read`], of a table that may be missing.
///
/// # Safety
///
/// As for [`read`].
pub(super) unsafe fn read_optional<T: Table>(table: *const T) -> Result<Option<T>> {
    if table.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { read(table) }.map(Some)
}

/// An array from C. An empty one may be null.
///
/// # Safety
///
/// If the pointer is not null and aligned, `count` values of T can be read there until `'a` ends,
/// and nobody changes them meanwhile. T admits every bit pattern.
pub(super) unsafe fn slice<'a, T: Copy>(
    first: *const T,
    count: usize,
    what: &'static str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    check(first, count, what)?;
    // SAFETY: not null, aligned and without wrap-around, checked above; the caller promises the
    // rest.
    Ok(unsafe { core::slice::from_raw_parts(first, count) })
}

/// A text from C, without its 0 byte.
///
/// # Safety
///
/// If the pointer is not null, there is a 0 byte at it or behind it, everything before that can be
/// read until `'a` ends, and nobody changes it meanwhile.
#[cfg(feature = "host")]
pub(super) unsafe fn text<'a>(first: *const c_char, what: &'static str) -> Result<&'a CStr> {
    check(first, 1, what)?;
    for bytes in 1..=TEXT_BYTES_MAX {
        // SAFETY: there was no 0 byte yet, so this byte can be read too.
        if unsafe { *first.add(bytes - 1) } == 0 {
            // SAFETY: all of them were just read.
            let bytes = unsafe { core::slice::from_raw_parts(first.cast::<u8>(), bytes) };
            let text = CStr::from_bytes_with_nul(bytes);
            return text.map_err(|_| Error::new(Code::InvalidArgument, what));
        }
    }
    Err(Error::new(Code::LimitExceeded, what).with(TEXT_BYTES_MAX))
}

/// As [`text`], where there may be none.
///
/// # Safety
///
/// As for [`text`].
#[cfg(feature = "host")]
pub(super) unsafe fn optional_text<'a>(
    first: *const c_char,
    what: &'static str,
) -> Result<Option<&'a CStr>> {
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { text(first, what) }.map(Some)
}

/// A table whose fields are all 0.
#[cfg(feature = "infer")]
pub(super) fn zeroed<T: Table>() -> T {
    // SAFETY: a Table admits every bit pattern.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

/// Whether two ranges of bytes share one.
fn overlap(first: (usize, usize), second: (usize, usize)) -> bool {
    first.0 < second.0.saturating_add(second.1) && second.0 < first.0.saturating_add(first.1)
}

/// Where values lie, for [`check_apart`]; nowhere if the pointer is null.
pub(super) fn extent<T>(first: *const T, count: usize) -> (usize, usize) {
    match first.is_null() {
        true => (0, 0),
        false => (first.addr(), size_of::<T>().saturating_mul(count)),
    }
}

/// Refuses memory of which a part is still needed for something else.
pub(super) fn check_apart(
    first: *const MaybeUninit<u8>,
    bytes: usize,
    others: &[(usize, usize)],
) -> Result<()> {
    match others.iter().find(|other| overlap((first.addr(), bytes), **other)) {
        Some(other) => {
            Err(Error::new(Code::InvalidArgument, "memory overlaps an argument").with(other.0))
        }
        None => Ok(()),
    }
}

/// Memory that C gives away.
///
/// # Safety
///
/// If the pointer is not null, `bytes` bytes can be read and written there, and until the caller
/// is told that the memory is its own again nobody else touches them.
pub(super) unsafe fn memory(
    first: *mut MaybeUninit<u8>,
    bytes: usize,
) -> Result<&'static mut [MaybeUninit<u8>]> {
    check(first, bytes, "memory")?;
    // SAFETY: not null and without wrap-around, checked above; the caller promises the rest.
    Ok(unsafe { core::slice::from_raw_parts_mut(first, bytes) })
}

/// A place for one plain value that C wants to have.
pub(super) struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    /// Checks the pointer.
    ///
    /// # Safety
    ///
    /// If the pointer is not null and aligned, a T can be read and written there while the place
    /// lives; there is a value of T, of any bit pattern that T admits.
    pub(super) unsafe fn new(place: *mut T, what: &'static str) -> Result<Self> {
        check(place, 1, what)?;
        Ok(Place(place))
    }

    /// What lies there.
    pub(super) fn get(&self) -> T {
        // SAFETY: checked and promised in `new`.
        unsafe { self.0.read() }
    }

    /// Puts a value there.
    pub(super) fn set(&self, value: T) {
        // SAFETY: checked and promised in `new`.
        unsafe { self.0.write(value) };
    }
}

/// Places for plain values, one beside the other.
pub(super) struct Places<T>(*mut T, usize);

impl<T: Copy> Places<T> {
    /// Checks the pointer; no places may be null.
    ///
    /// # Safety
    ///
    /// As for [`Place::new`], for `count` of them.
    pub(super) unsafe fn new(first: *mut T, count: usize, what: &'static str) -> Result<Self> {
        if count > 0 {
            check(first, count, what)?;
        }
        Ok(Places(first, count))
    }

    /// Puts a value into one.
    pub(super) fn set(&self, index: usize, value: T) {
        assert!(index < self.1);
        // SAFETY: checked and promised in `new`; the index is below the count, asserted above.
        unsafe { self.0.add(index).write(value) };
    }
}

/// Places for tables, of the size that the first one says, which is also how far they lie apart.
pub(super) struct Tables<T> {
    first: *mut u8,
    bytes: usize,
    count: usize,
    of: PhantomData<T>,
}

impl<T: Table> Tables<T> {
    /// One table.
    ///
    /// # Safety
    ///
    /// If the pointer is not null and aligned, the table is readable and writable, for as many
    /// bytes as it says, while this value lives.
    pub(super) unsafe fn one(table: *mut T) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::array(table, 1) }
    }

    /// `count` tables; none may be null.
    ///
    /// # Safety
    ///
    /// As for [`Tables::one`], for all of them.
    pub(super) unsafe fn array(first: *mut T, count: usize) -> Result<Self> {
        if count == 0 {
            return Ok(Tables { first: ptr::null_mut(), bytes: 0, count, of: PhantomData });
        }
        // SAFETY: the caller's promise.
        let bytes = unsafe { struct_bytes(first) }?;
        let all = bytes.checked_mul(count).ok_or(Error::new(Code::InvalidArgument, T::NAME))?;
        check(first.cast::<u8>(), all, T::NAME)?;
        if count > 1 && !bytes.is_multiple_of(align_of::<T>()) {
            return Err(Error::new(Code::InvalidArgument, T::NAME).with(bytes));
        }
        Ok(Tables { first: first.cast(), bytes, count, of: PhantomData })
    }

    /// Room for so many.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Writes table `index`: what its owner knows of `value`, its own `struct_bytes`, and 0 where
    /// this version knows nothing.
    pub(super) fn write(&self, index: usize, value: &T) {
        assert!(index < self.count);
        let known = self.bytes.min(size_of::<T>());
        let struct_bytes = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        // SAFETY: `index` is below `count`, asserted above, and `count` times `bytes` are writable
        // (checked and promised in `array`).
        let table = unsafe { self.first.add(index * self.bytes) };
        // SAFETY: `known` is at most `bytes` and at most the size of the value, which has no
        // padding and is elsewhere.
        unsafe { ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), table, known) };
        // SAFETY: from `known` on the table has `bytes - known` bytes.
        unsafe { table.add(known).write_bytes(0, self.bytes - known) };
        // SAFETY: every table begins with a u32, and each is aligned: the first was checked, and
        // the distance is a multiple of the alignment.
        unsafe { table.cast::<u32>().write(struct_bytes) };
    }
}
