//! The tokenizer: the vocabulary of the file, encoded by the `tokenizers` crate.

use super::bytes;
use super::failure::{Failure, Outcome};
use super::pretokenize::{self, Family};
use super::vocabulary::{TokenType, Vocabulary};
use std::collections::HashMap;
use std::fmt;
use tokenizers::models::bpe::{BPE, BpeBuilder, Vocab};
use tokenizers::normalizers::{NFC, NormalizerWrapper, Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizedString, Normalizer};

/// SentencePiece writes a space so.
const SPACE: char = '\u{2581}';

/// Tokens after which an answer is over, in the common families.
const TURN_ENDS: [&str; 9] = [
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<|end|>",
    "<end_of_turn>",
    "[|endofturn|]",
    "</s>",
];

/// What control tokens written out in the text mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Text like any other: for what people and files say.
    AsText,
    /// The tokens themselves: for the output of a chat template.
    AsTokens,
}

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// Bytes for which this vocabulary has no token; they are left out, as in training.
    pub bytes_lost: usize,
}

/// Encodes and decodes for one vocabulary.
pub struct Tokenizer {
    vocabulary: Vocabulary,
    scheme: Scheme,
    inner: tokenizers::Tokenizer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    ByteLevel(Family),
    SentencePiece,
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Checks the vocabulary and builds the encoder.
    pub fn new(vocabulary: Vocabulary) -> Outcome<Self> {
        vocabulary.check()?;
        let (scheme, inner) = match vocabulary.model.as_str() {
            "gpt2" => {
                let family = pretokenize::find(vocabulary.pre.as_deref())?;
                (Scheme::ByteLevel(family), byte_level(&vocabulary, family))
            }
            "llama" => (Scheme::SentencePiece, sentence_piece(&vocabulary)),
            other => {
                let message = format!("tokenizer.ggml.model: `{other}` is not supported");
                return Err(Failure::new(message).hint("use a model with a BPE vocabulary"));
            }
        };
        let mut inner = inner.map_err(|error| failed("vocabulary", &error))?;
        let added = inner.add_tokens(added_tokens(&vocabulary));
        added.map_err(|error| failed("vocabulary", &error))?;
        Ok(Tokenizer { vocabulary, scheme, inner })
    }

    /// A reason to distrust the tokens, for the user.
    pub fn warning(&self) -> Option<&'static str> {
        let is_guess = self.vocabulary.pre.is_none() && self.scheme != Scheme::SentencePiece;
        is_guess.then_some(
            "the model file does not name its pre-tokenizer (tokenizer.ggml.pre); \
             tokens may differ from those it was trained on",
        )
    }

    /// What the file said.
    pub const fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }

    /// The tokens of a text, without BOS.
    pub fn encode(&mut self, text: &str, special: Special) -> Outcome<Encoded> {
        // The crate keeps this choice as a state of the tokenizer; it costs nothing to set.
        self.inner.set_encode_special_tokens(special == Special::AsText);
        let text = self.composed(text)?;
        let encoding = self.inner.encode_fast(text.as_str(), false);
        let encoding = encoding.map_err(|error| failed("text", &error))?;
        let ids = encoding.get_ids().to_vec();
        Ok(Encoded { bytes_lost: self.bytes_lost(&text, &ids), ids })
    }

    /// The tokens of the start of a context: BOS in front where the model wants it and the text
    /// (of a chat template) does not begin with it already.
    pub fn encode_start(&mut self, text: &str, special: Special) -> Outcome<Encoded> {
        let mut encoded = self.encode(text, special)?;
        if let Some(bos) = self.start_token().filter(|bos| encoded.ids.first() != Some(bos)) {
            encoded.ids.insert(0, bos);
        }
        Ok(encoded)
    }

    /// BOS, where contexts begin with it.
    pub fn start_token(&self) -> Option<u32> {
        let by_default = match self.scheme {
            Scheme::ByteLevel(family) => family.add_bos,
            Scheme::SentencePiece => true,
        };
        self.vocabulary.bos.filter(|_| self.vocabulary.add_bos.unwrap_or(by_default))
    }

    /// Tokens that end an answer.
    pub fn stop_tokens(&self) -> Vec<u32> {
        let turn_ends = TURN_ENDS.iter().filter_map(|end| self.vocabulary.control(end));
        let mut stops: Vec<u32> = self.vocabulary.eos.into_iter().chain(turn_ends).collect();
        stops.sort_unstable();
        stops.dedup();
        stops
    }

    /// The text of tokens from the start of a context.
    #[cfg(test)]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = super::TextStream::from_start(self);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// Appends the bytes of a token's text; control tokens and unknown ids have none.
    pub(super) fn append_bytes(&self, id: u32, into: &mut Vec<u8>) {
        let Some(token) = self.vocabulary.token(id) else { return };
        match (self.vocabulary.kind(id), self.scheme) {
            (TokenType::Control | TokenType::Unknown | TokenType::Unused, _) => {}
            (TokenType::Byte, _) => into.extend(byte_token(token)),
            (TokenType::UserDefined, Scheme::ByteLevel(_)) => into.extend(token.as_bytes()),
            (TokenType::Normal, Scheme::ByteLevel(_)) => append_byte_level(token, into),
            (_, Scheme::SentencePiece) => into.extend(token.replace(SPACE, " ").as_bytes()),
        }
    }

    /// Whether encoding puts a space in front of the text.
    pub(super) fn adds_space(&self) -> bool {
        self.scheme == Scheme::SentencePiece && adds_space(&self.vocabulary)
    }

    fn composed(&self, text: &str) -> Outcome<String> {
        match self.scheme {
            Scheme::ByteLevel(Family { is_composed: true, .. }) => {
                let mut composed = NormalizedString::from(text);
                NFC.normalize(&mut composed).map_err(|error| failed("text", &error))?;
                Ok(composed.get().to_owned())
            }
            _ => Ok(text.to_owned()),
        }
    }

    fn bytes_lost(&self, text: &str, ids: &[u32]) -> usize {
        if self.scheme == Scheme::SentencePiece {
            return ids.iter().filter(|id| Some(**id) == self.vocabulary.unk).count();
        }
        let mut kept = 0;
        let mut bytes = Vec::new();
        for id in ids {
            bytes.clear();
            match self.vocabulary.kind(*id) {
                TokenType::Control => kept += self.vocabulary.token(*id).map_or(0, str::len),
                _ => self.append_bytes(*id, &mut bytes),
            }
            kept += bytes.len();
        }
        text.len().saturating_sub(kept)
    }
}

fn failed(what: &str, error: &tokenizers::Error) -> Failure {
    Failure::new(format!("cannot tokenize the {what}: {error}"))
}

fn adds_space(vocabulary: &Vocabulary) -> bool {
    vocabulary.add_space_prefix.unwrap_or(true)
}

fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16).ok()
}

fn append_byte_level(token: &str, into: &mut Vec<u8>) {
    for char in token.chars() {
        match bytes::from_char(char) {
            Some(byte) => into.push(byte),
            // A spelling outside the alphabet can only be meant literally.
            None => into.extend(char.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Control tokens are found only where asked for, user-defined ones always.
fn added_tokens(vocabulary: &Vocabulary) -> Vec<AddedToken> {
    let spelled = vocabulary.iter().filter(|(_, token)| !token.is_empty());
    let added = spelled.filter_map(|(id, token)| match vocabulary.kind(id) {
        TokenType::Control => Some(AddedToken::from(token, true).normalized(false)),
        // Runs of spaces are spelled otherwise than they are written; merges find those.
        TokenType::UserDefined if !token.contains(SPACE) => {
            Some(AddedToken::from(token, false).normalized(false))
        }
        _ => None,
    });
    added.collect()
}

type Merges = Vec<(String, String)>;

fn ids(vocabulary: &Vocabulary) -> HashMap<&str, u32> {
    vocabulary
        .iter()
        .filter(|(_, token)| !token.is_empty())
        .map(|(id, token)| (token, id))
        .collect()
}

fn byte_level(
    vocabulary: &Vocabulary,
    family: Family,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let ids = ids(vocabulary);
    let mut merges = Merges::with_capacity(vocabulary.merges.len());
    for merge in &vocabulary.merges {
        // The separator is the first space after at least one character.
        let Some((left, right)) = merge
            .char_indices()
            .skip(1)
            .find(|(_, char)| *char == ' ')
            .map(|(at, _)| (&merge[..at], &merge[at + 1..]))
        else {
            continue;
        };
        // A merge of or into what is no token can never apply.
        let is_known = ids.contains_key(left) && ids.contains_key(right);
        if is_known && ids.contains_key(format!("{left}{right}").as_str()) {
            merges.push((left.to_owned(), right.to_owned()));
        }
    }
    let model = model(&ids, merges).ignore_merges(family.ignore_merges).build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_pre_tokenizer(Some(family.build()?));
    Ok(tokenizer)
}

fn sentence_piece(vocabulary: &Vocabulary) -> tokenizers::Result<tokenizers::Tokenizer> {
    let ids = ids(vocabulary);
    let mut builder = model(&ids, merges_by_score(vocabulary, &ids));
    builder = builder.byte_fallback(ids.contains_key("<0x00>")).fuse_unk(true);
    if let Some(unknown) = vocabulary.unk.and_then(|id| vocabulary.token(id)) {
        builder = builder.unk_token(unknown.to_owned());
    }
    let mut tokenizer = tokenizers::Tokenizer::new(builder.build()?);
    let spaces = NormalizerWrapper::Replace(Replace::new(" ", SPACE.to_string())?);
    let mut steps = vec![spaces];
    if adds_space(vocabulary) {
        steps.insert(0, NormalizerWrapper::Prepend(Prepend::new(SPACE.to_string())));
    }
    tokenizer.with_normalizer(Some(Sequence::new(steps)))?;
    Ok(tokenizer)
}

fn model(ids: &HashMap<&str, u32>, merges: Merges) -> BpeBuilder {
    let vocab: Vocab = ids.iter().map(|(token, id)| ((*token).to_owned(), *id)).collect();
    BPE::builder().vocab_and_merges(vocab, merges)
}

/// SentencePiece merges whichever neighbours make the token of the highest score; the same as
/// merging by rank, where every way to make a token ranks as its score does.
fn merges_by_score(vocabulary: &Vocabulary, ids: &HashMap<&str, u32>) -> Merges {
    let score = |id: u32| {
        let index = usize::try_from(id).ok();
        index.and_then(|index| vocabulary.scores.get(index)).copied().unwrap_or(0.0)
    };
    let mergeable =
        |id: u32| matches!(vocabulary.kind(id), TokenType::Normal | TokenType::UserDefined);
    let mut found: Vec<(f32, u32, u32, u32)> = Vec::new();
    for (id, token) in vocabulary.iter().filter(|(id, _)| mergeable(*id)) {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(left), Some(right)) = (ids.get(left), ids.get(right)) {
                found.push((score(id), id, *left, *right));
            }
        }
    }
    found.sort_unstable_by(|a, b| {
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then(a.2.cmp(&b.2)).then(a.3.cmp(&b.3))
    });
    let spelling = |id: u32| vocabulary.token(id).unwrap_or_default().to_owned();
    found.into_iter().map(|(_, _, left, right)| (spelling(left), spelling(right))).collect()
}
