//! A made-up vocabulary in the byte-level BPE form: every byte is a token, so any text can be
//! written, and the rest are made-up words, so that what the model says reads like speech.

use crate::text::byte_char;

/// The end of a text.
pub const END_OF_TEXT: u32 = 0;
/// The start of a turn.
pub const TURN_START: u32 = 1;
/// The end of a turn.
pub const TURN_END: u32 = 2;

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
const CONSONANTS: [&str; 16] =
    ["b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z"];
const VOWELS: [&str; 5] = ["a", "e", "i", "o", "u"];
const SYLLABLES: u32 = 80;

/// Tokens that every vocabulary has: specials, bytes, syllables, syllables after a space.
pub const TOKENS_MIN: u32 = 3 + 256 + 2 * SYLLABLES;

/// Spellings, kinds and merges of a vocabulary.
pub struct Words {
    pub tokens: Vec<String>,
    pub kinds: Vec<i32>,
    pub merges: Vec<String>,
}

/// Kinds of `tokenizer.ggml.token_type`.
const KIND_NORMAL: i32 = 1;
const KIND_CONTROL: i32 = 3;

impl Words {
    /// A vocabulary of `count` tokens, at least [`TOKENS_MIN`].
    pub fn new(count: u32) -> Self {
        assert!(count >= TOKENS_MIN);
        let mut tokens: Vec<String> = SPECIALS.map(str::to_owned).to_vec();
        tokens.extend((0..=255).map(|byte| byte_char(byte).to_string()));
        tokens.extend((0..SYLLABLES).map(syllable));
        let words = count - 3 - 256 - SYLLABLES;
        tokens.extend((0..words).map(|index| format!("{}{}", byte_char(b' '), word(index))));
        let mut kinds = vec![KIND_NORMAL; tokens.len()];
        kinds.iter_mut().take(SPECIALS.len()).for_each(|kind| *kind = KIND_CONTROL);
        let pairs = (0..SYLLABLES).map(|index| {
            let (consonant, vowel) = letters(index);
            format!("{consonant} {vowel}")
        });
        let after_space =
            (0..SYLLABLES).map(|index| format!("{} {}", byte_char(b' '), syllable(index)));
        Words { merges: pairs.chain(after_space).collect(), tokens, kinds }
    }
}

fn letters(index: u32) -> (&'static str, &'static str) {
    let index = index as usize;
    (CONSONANTS[index / VOWELS.len() % CONSONANTS.len()], VOWELS[index % VOWELS.len()])
}

fn syllable(index: u32) -> String {
    let (consonant, vowel) = letters(index);
    format!("{consonant}{vowel}")
}

/// The word of a number: one syllable for the first 80, two for the next 6,400, and so on.
fn word(mut index: u32) -> String {
    let mut syllables = vec![syllable(index % SYLLABLES)];
    while index >= SYLLABLES {
        index = index / SYLLABLES - 1;
        syllables.push(syllable(index % SYLLABLES));
    }
    syllables.reverse();
    syllables.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_vocabulary_has_the_size_asked_for_and_no_word_twice() {
        for count in [TOKENS_MIN, 1024, 151_936] {
            let words = Words::new(count);
            assert_eq!((words.tokens.len(), words.kinds.len()), (count as usize, count as usize));
            assert_eq!(words.tokens.iter().collect::<HashSet<_>>().len(), count as usize);
        }
    }

    #[test]
    fn merges_are_of_tokens_into_tokens() {
        let words = Words::new(TOKENS_MIN);
        let tokens: HashSet<&str> = words.tokens.iter().map(String::as_str).collect();
        assert_eq!(words.merges.len(), 160);
        for merge in &words.merges {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(tokens.contains(left), "{merge}");
            assert!(tokens.contains(right), "{merge}");
            assert!(tokens.contains(format!("{left}{right}").as_str()), "{merge}");
        }
    }

    #[test]
    fn words_grow_syllable_by_syllable() {
        assert_eq!([word(0), word(79), word(80), word(6480)], ["ba", "zu", "baba", "bababa"]);
    }
}
