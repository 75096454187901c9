//! The program's failures as far as text needs them, without files, devices and exit codes.

use std::fmt;

pub type Outcome<T> = Result<T, Failure>;

#[derive(Debug)]
pub struct Failure {
    pub message: String,
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure { message: message.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint.get_or_insert_with(|| hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<mzcache::Error> for Failure {
    fn from(error: mzcache::Error) -> Self {
        Failure::new(error.to_string())
    }
}
