//! Lists of drivers in the environment, which some loaders cut short while they read them.
//!
//! A loader that takes its drivers from a variable may end each name where it stands. The process
//! that compiles kernels would then inherit the first name alone, and not find the device. So what
//! such a variable held is put back once the loader has read it.

use core::ffi::{CStr, c_char};
use core::ptr::NonNull;

/// The variables that loaders take apart in place.
const VARIABLES: [&CStr; 2] = [c"OCL_ICD_FILENAMES", c"OPENCL_LAYERS"];

/// Longer lists are left as the loader leaves them.
const BYTES_MAX: usize = 4096;

/// Makes a call that may read the lists, and leaves them as they were.
pub(super) fn kept<T>(call: impl FnOnce() -> T) -> T {
    let lists = VARIABLES.map(List::of);
    let result = call();
    for list in lists.iter().flatten() {
        list.put_back();
    }
    result
}

struct List {
    name: &'static CStr,
    value: NonNull<c_char>,
    bytes: [u8; BYTES_MAX],
    length: usize,
}

impl List {
    fn of(name: &'static CStr) -> Option<List> {
        let value = value(name)?;
        // SAFETY: a variable's value is a C string. Whoever changes the environment of a process
        // with threads breaks the C library's rule, as for every reader of it.
        let text = unsafe { CStr::from_ptr(value.as_ptr()) }.to_bytes();
        let mut bytes = [0; BYTES_MAX];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(List { name, value, bytes, length: text.len() })
    }

    fn put_back(&self) {
        // A variable that was set anew since is somebody else's.
        if value(self.name) != Some(self.value) {
            return;
        }
        let start = self.value.as_ptr().cast::<u8>();
        for (index, byte) in self.bytes[..self.length].iter().enumerate() {
            // SAFETY: the value is where it was, so it has `length` bytes; who cut it wrote to it
            // too.
            let place = unsafe { start.add(index) };
            // SAFETY: as above.
            if unsafe { place.read() } != *byte {
                // SAFETY: as above.
                unsafe { place.write(*byte) };
            }
        }
    }
}

fn value(name: &CStr) -> Option<NonNull<c_char>> {
    // SAFETY: the name is a C string.
    NonNull::new(unsafe { libc::getenv(name.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const NAME: &str = "OCL_ICD_FILENAMES";
    const LIST: &str = "/a/first.so:second.so:third.so";

    /// Runs in a process of its own, which starts with the list.
    #[test]
    fn a_list_that_was_cut_is_put_back() {
        if std::env::var(NAME).as_deref() != Ok(LIST) {
            let mut again = Command::new(std::env::current_exe().unwrap());
            again.args(["--exact", "port::opencl::lists::tests::a_list_that_was_cut_is_put_back"]);
            assert!(again.env(NAME, LIST).status().unwrap().success());
            return;
        }
        let result = kept(|| {
            let value = value(c"OCL_ICD_FILENAMES").unwrap();
            // SAFETY: the list is longer, and this process's only thread that looks at it is here.
            unsafe { value.add("/a/first.so".len()).write(0) };
            assert_eq!(std::env::var(NAME).as_deref(), Ok("/a/first.so"));
            7
        });
        assert_eq!((result, std::env::var(NAME).as_deref()), (7, Ok(LIST)));
    }
}
