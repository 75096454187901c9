//! What OpenCL's error numbers mean to the caller.

use super::api::{SUCCESS, Status};
use crate::error::{Code, Error, Result};

/// OpenCL's errors by number: the name, and what the caller can do.
const STATUSES: [(Status, &str, Code); 37] = [
    (-1, "CL_DEVICE_NOT_FOUND", Code::NoDevice),
    (-2, "CL_DEVICE_NOT_AVAILABLE", Code::NoDevice),
    (-3, "CL_COMPILER_NOT_AVAILABLE", Code::BuildFailed),
    (-4, "CL_MEM_OBJECT_ALLOCATION_FAILURE", Code::OutOfMemory),
    (-5, "CL_OUT_OF_RESOURCES", Code::DeviceFailed),
    (-6, "CL_OUT_OF_HOST_MEMORY", Code::OutOfMemory),
    (-7, "CL_PROFILING_INFO_NOT_AVAILABLE", Code::BadState),
    (-11, "CL_BUILD_PROGRAM_FAILURE", Code::BuildFailed),
    (-12, "CL_MAP_FAILURE", Code::OutOfMemory),
    (-14, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST", Code::DeviceLost),
    (-15, "CL_COMPILE_PROGRAM_FAILURE", Code::BuildFailed),
    (-17, "CL_LINK_PROGRAM_FAILURE", Code::BuildFailed),
    (-30, "CL_INVALID_VALUE", Code::DeviceFailed),
    (-32, "CL_INVALID_PLATFORM", Code::NoDevice),
    (-33, "CL_INVALID_DEVICE", Code::NoDevice),
    (-34, "CL_INVALID_CONTEXT", Code::DeviceLost),
    (-35, "CL_INVALID_QUEUE_PROPERTIES", Code::Unsupported),
    (-36, "CL_INVALID_COMMAND_QUEUE", Code::DeviceLost),
    (-38, "CL_INVALID_MEM_OBJECT", Code::DeviceFailed),
    (-42, "CL_INVALID_BINARY", Code::Mismatch),
    (-43, "CL_INVALID_BUILD_OPTIONS", Code::BuildFailed),
    (-44, "CL_INVALID_PROGRAM", Code::BuildFailed),
    (-45, "CL_INVALID_PROGRAM_EXECUTABLE", Code::BuildFailed),
    (-46, "CL_INVALID_KERNEL_NAME", Code::InvalidArgument),
    (-48, "CL_INVALID_KERNEL", Code::DeviceFailed),
    (-49, "CL_INVALID_ARG_INDEX", Code::InvalidArgument),
    (-50, "CL_INVALID_ARG_VALUE", Code::InvalidArgument),
    (-51, "CL_INVALID_ARG_SIZE", Code::InvalidArgument),
    (-52, "CL_INVALID_KERNEL_ARGS", Code::InvalidArgument),
    (-54, "CL_INVALID_WORK_GROUP_SIZE", Code::InvalidArgument),
    (-55, "CL_INVALID_WORK_ITEM_SIZE", Code::InvalidArgument),
    (-58, "CL_INVALID_EVENT", Code::DeviceFailed),
    (-59, "CL_INVALID_OPERATION", Code::Unsupported),
    (-61, "CL_INVALID_BUFFER_SIZE", Code::LimitExceeded),
    (-63, "CL_INVALID_GLOBAL_WORK_SIZE", Code::InvalidArgument),
    (-1001, "CL_PLATFORM_NOT_FOUND_KHR", Code::NoDevice),
    (-9999, "illegal access by a kernel", Code::DeviceLost),
];

/// The name of an OpenCL error, for people.
pub fn status_name(status: i64) -> &'static str {
    let found = STATUSES.iter().find(|(number, ..)| i64::from(*number) == status);
    found.map_or("an OpenCL error", |(_, name, _)| name)
}

/// The error for a call of `what` that returned `status`.
pub(super) fn error(what: &'static str, status: Status) -> Error {
    let found = STATUSES.iter().find(|(number, ..)| *number == status);
    let code = found.map_or(Code::DeviceFailed, |(.., code)| *code);
    Error::new(code, what).with(status)
}

/// The result of a call of `what`.
pub(super) fn check(what: &'static str, status: Status) -> Result<()> {
    match status {
        SUCCESS => Ok(()),
        failed => Err(error(what, failed)),
    }
}

/// The same for a call that waits for commands to run: one that ran out of resources then has hit a
/// fault or the driver's hang detector, and the context is gone.
pub(super) fn check_run(what: &'static str, status: Status) -> Result<()> {
    check(what, status).map_err(|error| match error.value {
        -5 => Error { code: Code::DeviceLost, ..error },
        _ => error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_carry_their_number_and_say_what_to_do() {
        assert_eq!(check("a", 0), Ok(()));
        assert_eq!(check("a", -4), Err(Error::new(Code::OutOfMemory, "a").with(-4)));
        assert_eq!(check("a", -4242), Err(Error::new(Code::DeviceFailed, "a").with(-4242)));
        assert_eq!(check("a", -5), Err(Error::new(Code::DeviceFailed, "a").with(-5)));
        assert_eq!(check_run("a", -5), Err(Error::new(Code::DeviceLost, "a").with(-5)));
        assert_eq!(check_run("a", -4), check("a", -4));
        assert_eq!(status_name(-11), "CL_BUILD_PROGRAM_FAILURE");
        assert_eq!(status_name(1), "an OpenCL error");
    }

    #[test]
    fn each_number_stands_once() {
        for (index, (number, ..)) in STATUSES.iter().enumerate() {
            assert!(STATUSES[..index].iter().all(|(other, ..)| other != number), "{number}");
        }
    }
}
