//! Every OpenCL kernel against an oracle in double precision.
//!
//! They run on PoCL, or on the device that `MZ_TEST_OPENCL_DEVICE` names. Without PoCL they say so
//! and pass, unless `MZ_CI` is set. Builds for half-precision arithmetic and for subgroups need a
//! device that has these: where `MZ_INTEL_OPENCL` is the path of Intel's CPU runtime, they run on
//! it. That runtime is a test tool from a Python package:
//!
//! ```text
//! python3 -m venv TOOLS && TOOLS/bin/pip install intel-opencl-rt intel-cmplr-lib-rt
//! LD_LIBRARY_PATH=TOOLS/lib MZ_INTEL_OPENCL=TOOLS/lib/libintelocl.so \
//!     cargo test --features opencl --test opencl_kernels
//! ```
//!
//! `checked` runs small cases under Oclgrind, which reports memory errors and data races.

mod attention;
mod checked;
mod device;
mod encodings;
mod layer;
mod matrix;
mod oracle;
mod products;
mod values;
