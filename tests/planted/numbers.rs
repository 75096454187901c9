//! The numbers in a planted library that this process has loaded.

use crate::planted::Planted;
use std::ffi::CStr;

impl Planted {
    fn find(&self, name: &CStr) -> *mut i32 {
        // SAFETY: the path is a C string; the library was written here and has no constructors.
        let handle = unsafe { libc::dlopen(self.path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        // SAFETY: the handle is open, the name a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found.cast()
    }

    /// A number in the library, which is loaded already.
    pub fn get(&self, name: &CStr) -> i32 {
        // SAFETY: the library defines it as an int; calls that change it are other libraries' too.
        unsafe { self.find(name).read_volatile() }
    }

    /// Sets such a number.
    pub fn set(&self, name: &CStr, value: i32) {
        // SAFETY: as above.
        unsafe { self.find(name).write_volatile(value) };
    }
}
