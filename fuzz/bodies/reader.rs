//! Takes an input apart, byte by byte.

/// The bytes that are left.
pub struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    /// The next byte, if there is one.
    pub fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next byte; 0 behind the end.
    pub fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    /// One of several things.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.byte()) % choices.len()]
    }
}
