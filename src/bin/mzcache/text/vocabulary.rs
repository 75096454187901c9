//! What a model file says about its vocabulary, and the check that it makes sense.

use super::failure::{Failure, Outcome};

/// Tokens of the largest vocabulary accepted; the largest in use have 262,144.
pub const TOKENS_MAX: usize = 1 << 20;
/// Bytes of the longest token accepted; it bounds the work of deriving merges.
const TOKEN_BYTES_MAX: usize = 1024;

/// The kinds of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenType {
    Normal,
    Unknown,
    /// Structure, such as the end of a turn; never produced by plain text, never shown.
    Control,
    /// Text that is always one token.
    UserDefined,
    Unused,
    /// A byte, written `<0x0A>`.
    Byte,
}

impl TokenType {
    fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            1 => TokenType::Normal,
            2 => TokenType::Unknown,
            3 => TokenType::Control,
            4 => TokenType::UserDefined,
            5 => TokenType::Unused,
            6 => TokenType::Byte,
            _ => return None,
        })
    }
}

/// The `tokenizer.*` metadata of a model file. Empty vectors and `None` mean "not in the file".
#[derive(Clone, Debug, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level BPE) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: how text is cut into words before BPE.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, each `left right`, the first merged first.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unk: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Checks sizes and ids, naming the metadata key that is wrong.
    pub fn check(&self) -> Outcome<()> {
        let count = self.tokens.len();
        if count == 0 || count > TOKENS_MAX {
            return Err(damaged("tokenizer.ggml.tokens", format!("{count} tokens")));
        }
        if let Some(id) = self.tokens.iter().position(|token| token.len() > TOKEN_BYTES_MAX) {
            return Err(damaged("tokenizer.ggml.tokens", format!("token {id} is too long")));
        }
        let per_token = [
            ("tokenizer.ggml.scores", self.scores.len()),
            ("tokenizer.ggml.token_type", self.token_types.len()),
        ];
        for (key, entries) in per_token {
            if entries != 0 && entries != count {
                return Err(damaged(key, format!("{entries} entries for {count} tokens")));
            }
        }
        let ids = [
            ("tokenizer.ggml.bos_token_id", self.bos),
            ("tokenizer.ggml.eos_token_id", self.eos),
            ("tokenizer.ggml.unknown_token_id", self.unk),
        ];
        for (key, id) in ids {
            if let Some(id) = id.filter(|id| self.token(*id).is_none()) {
                return Err(damaged(key, format!("{id} is outside {count} tokens")));
            }
        }
        let strange = self.token_types.iter().find(|kind| TokenType::from_number(**kind).is_none());
        match strange {
            Some(kind) => Err(damaged("tokenizer.ggml.token_type", format!("unknown kind {kind}"))),
            None => Ok(()),
        }
    }

    /// A token's spelling.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.tokens.get(usize::try_from(id).ok()?).map(String::as_str)
    }

    /// A token's kind; normal where the file does not say.
    pub fn kind(&self, id: u32) -> TokenType {
        let number = usize::try_from(id).ok().and_then(|index| self.token_types.get(index));
        number.and_then(|number| TokenType::from_number(*number)).unwrap_or(TokenType::Normal)
    }

    /// Ids and spellings.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &str)> {
        (0u32..).zip(self.tokens.iter().map(String::as_str))
    }

    /// The id of a control token of that spelling.
    pub fn control(&self, spelling: &str) -> Option<u32> {
        let mut controls = self.iter().filter(|(id, _)| self.kind(*id) == TokenType::Control);
        controls.find(|(_, token)| *token == spelling).map(|(id, _)| id)
    }
}

fn damaged(key: &str, what: String) -> Failure {
    Failure::new(format!("{key}: {what}"))
        .hint("the model file is damaged or of an unknown kind; download it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small() -> Vocabulary {
        let tokens = ["a", "b", "<end>"].map(String::from).to_vec();
        Vocabulary { tokens, token_types: vec![1, 1, 3], eos: Some(2), ..Vocabulary::default() }
    }

    #[test]
    fn lookups_answer_or_say_none() {
        let vocabulary = small();
        vocabulary.check().unwrap();
        assert_eq!(vocabulary.token(1), Some("b"));
        assert_eq!(vocabulary.token(3), None);
        assert_eq!(vocabulary.kind(2), TokenType::Control);
        assert_eq!(vocabulary.kind(99), TokenType::Normal);
        assert_eq!(vocabulary.control("<end>"), Some(2));
        assert_eq!(vocabulary.control("a"), None);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let long = "x".repeat(TOKEN_BYTES_MAX + 1);
        let wrong: [(&str, Vocabulary); 7] = [
            ("tokens", Vocabulary { tokens: vec![], ..small() }),
            ("tokens", Vocabulary { tokens: vec!["a".into(), "b".into(), long], ..small() }),
            ("scores", Vocabulary { scores: vec![0.0], ..small() }),
            ("token_type", Vocabulary { token_types: vec![1], ..small() }),
            ("token_type", Vocabulary { token_types: vec![1, 7, 1], ..small() }),
            ("eos_token_id", Vocabulary { eos: Some(3), ..small() }),
            ("unknown_token_id", Vocabulary { unk: Some(u32::MAX), ..small() }),
        ];
        for (key, vocabulary) in wrong {
            let failure = vocabulary.check().unwrap_err();
            assert!(failure.message.contains(key), "{key}: {failure}");
        }
    }
}
