//! Tokens back into text, one by one.
//!
//! A character may be spread over several tokens; its bytes are held back until it is whole, so
//! what is given out is always valid UTF-8 and, joined, the same as decoding everything at once.

use super::tokenizer::Tokenizer;

/// The text of one answer, as it grows.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    held: Vec<u8>,
    /// Before the first text: where the space that the encoder put in front is taken off again.
    is_start: bool,
}

impl<'a> TextStream<'a> {
    /// A text that begins at the start of a context.
    #[cfg(test)]
    pub const fn from_start(tokenizer: &'a Tokenizer) -> Self {
        TextStream { tokenizer, held: Vec::new(), is_start: true }
    }

    /// A text that goes on from tokens before it.
    pub const fn from_middle(tokenizer: &'a Tokenizer) -> Self {
        TextStream { tokenizer, held: Vec::new(), is_start: false }
    }

    /// The text that this token completes; control tokens have none.
    pub fn push(&mut self, id: u32) -> String {
        let before = self.held.len();
        self.tokenizer.append_bytes(id, &mut self.held);
        if self.is_start && self.held.len() > before {
            self.is_start = false;
            if self.tokenizer.adds_space() && self.held.first() == Some(&b' ') {
                self.held.remove(0);
            }
        }
        self.take_whole()
    }

    /// What is left at the end: at most one unfinished character, as U+FFFD.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.held).into_owned()
    }

    fn take_whole(&mut self) -> String {
        let mut text = String::new();
        let mut start = 0;
        while let Some(rest) = self.held.get(start..).filter(|rest| !rest.is_empty()) {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    start = self.held.len();
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    text.push_str(&String::from_utf8_lossy(valid));
                    start += valid.len();
                    // No length: the bytes so far may still become a character.
                    let Some(broken) = error.error_len() else { break };
                    text.push(char::REPLACEMENT_CHARACTER);
                    start += broken;
                }
            }
        }
        self.held.drain(..start);
        text
    }
}
