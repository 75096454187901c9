//! Architectures without kernels of their own keep the portable ones.

use crate::kernel::{CpuFlags, Kernels};

/// Leaves the table as it is.
pub(in crate::kernel) const fn improve(table: Kernels, _: CpuFlags) -> Kernels {
    table
}
