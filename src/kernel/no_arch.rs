//! Architectures without kernels of their own keep the portable ones.

use super::{CpuFlags, Kernels};

/// Leaves the table as it is.
pub(super) const fn improve(table: Kernels, _: CpuFlags) -> Kernels {
    table
}
