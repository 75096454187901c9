//! What a panic does in a bare archive: it ends the program through C's `abort`, which is the only
//! symbol imported for it. A program that wants to say why it stops defines `abort` itself.

use core::panic::PanicInfo;

/// cbindgen:ignore
mod c {
    unsafe extern "C" {
        pub(super) safe fn abort() -> !;
    }
}

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    c::abort()
}
