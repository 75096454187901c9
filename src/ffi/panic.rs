//! What a panic does in a bare archive: it ends the program through C's `abort`, which is the only
//! symbol imported for it. A program that wants to say why it stops defines `abort` itself.

use core::panic::PanicInfo;

// SAFETY: C's `abort` takes nothing and does not return.
unsafe extern "C" {
    /// cbindgen:ignore
    safe fn abort() -> !;
}

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    abort()
}
