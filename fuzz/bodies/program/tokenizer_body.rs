//! Vocabularies: what a model file says about its own tokens is refused, or gives a tokenizer that
//! takes any text and keeps its promises.

use super::super::reader::Reader;
use super::text::{Special, TextStream, Tokenizer, Vocabulary, byte_char};
use mzcache::infer::gguf::Gguf;

/// Between the parts of an input; it stands in no text.
const BREAK: u8 = 0xFF;

const FAMILIES: [Option<&str>; 9] = [
    None,
    Some("gpt-2"),
    Some("smollm"),
    Some("llama-bpe"),
    Some("qwen2"),
    Some("gpt-4o"),
    Some("tekken"),
    Some("dbrx"),
    Some("no such family"),
];

/// A text of many kinds of characters for vocabularies out of a file.
const TEXT: &str = "A na\u{EF}ve\u{2581}12345 e\u{301}\u{1F980} <s>  \t\r\n\n it's</s>";

/// Reads the bytes as a model file, or as settings, tokens, merges, kinds, scores and a text;
/// whether they make a tokenizer.
pub fn tokenizer(data: &[u8]) -> bool {
    if data.starts_with(b"GGUF") {
        let Ok(gguf) = Gguf::parse(data) else { return false };
        return match Vocabulary::read(&gguf) {
            Ok(vocabulary) => try_out(vocabulary, TEXT),
            Err(failure) => is_said(&failure),
        };
    }
    let mut parts = data.split(|byte| *byte == BREAK);
    let settings = parts.next().unwrap_or_default();
    let mut lines = || -> Vec<String> {
        let part = String::from_utf8_lossy(parts.next().unwrap_or_default());
        part.split_terminator('\n').map(str::to_owned).collect()
    };
    let mut vocabulary = Vocabulary { tokens: lines(), merges: lines(), ..Vocabulary::default() };
    let [kinds, scores] = [(); 2].map(|()| parts.next().unwrap_or_default());
    vocabulary.token_types = kinds.iter().map(|byte| i32::from(*byte) - 48).collect();
    vocabulary.scores = scores.iter().map(|byte| score(*byte)).collect();
    let text = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    set(&mut vocabulary, &mut Reader(settings));
    try_out(vocabulary, &text)
}

/// A score of a byte, with some that do not compare.
fn score(byte: u8) -> f32 {
    match byte {
        0 => f32::NAN,
        1 => f32::NEG_INFINITY,
        _ => 64.0 - f32::from(byte),
    }
}

fn set(vocabulary: &mut Vocabulary, settings: &mut Reader<'_>) {
    let bits = settings.byte();
    let bit = |n: u32| bits >> n & 1 != 0;
    vocabulary.model = if bit(0) { "llama" } else { "gpt2" }.to_owned();
    vocabulary.pre = settings.pick(&FAMILIES).map(str::to_owned);
    vocabulary.add_bos = bit(2).then_some(bit(3));
    vocabulary.add_space_prefix = bit(4).then_some(bit(5));
    let mut id = || settings.next().map(u32::from).filter(|id| *id < 200);
    (vocabulary.bos, vocabulary.eos, vocabulary.unk) = (id(), id(), id());
    if bit(1) {
        let bytes = 0..=255u8;
        let spell = |byte| if bit(0) { format!("<0x{byte:02X}>") } else { byte_char(byte).into() };
        vocabulary.tokens.extend(bytes.map(spell));
        if !vocabulary.token_types.is_empty() {
            vocabulary.token_types.extend([if bit(0) { 6 } else { 1 }; 256]);
        }
        if !vocabulary.scores.is_empty() {
            vocabulary.scores.extend([-1000.0; 256]);
        }
    }
}

fn try_out(vocabulary: Vocabulary, text: &str) -> bool {
    let is_plain = is_plain(&vocabulary);
    let count = vocabulary.tokens.len();
    let mut tokenizer = match Tokenizer::new(vocabulary) {
        Ok(tokenizer) => tokenizer,
        Err(failure) => return is_said(&failure),
    };
    let as_text = tokenizer.encode(text, Special::AsText).unwrap();
    let as_tokens = tokenizer.encode_start(text, Special::AsTokens).unwrap();
    assert_eq!(tokenizer.encode(text, Special::AsText).unwrap(), as_text, "it has a memory");
    if let Some(start) = tokenizer.start_token() {
        assert_eq!(as_tokens.ids.first(), Some(&start));
    }
    for encoded in [&as_text, &as_tokens] {
        for id in encoded.ids.iter().chain(&tokenizer.stop_tokens()) {
            assert!((*id as usize) < count && tokenizer.vocabulary().token(*id).is_some());
        }
        assert!(encoded.bytes_lost <= text.len() + 3, "more is lost than there was");
    }
    let mut stream = TextStream::from_middle(&tokenizer);
    let mut back: String = as_text.ids.iter().map(|id| stream.push(*id)).collect();
    back.push_str(&stream.finish());
    if is_plain {
        assert_eq!(as_text.bytes_lost, 0);
        assert_eq!(back, text);
    }
    let is_guess = tokenizer.vocabulary().pre.is_none() && tokenizer.vocabulary().model == "gpt2";
    assert_eq!(tokenizer.warning().is_some(), is_guess);
    true
}

/// Whether text must come back as it was: every byte has a token, and no token means anything else
/// than it says.
fn is_plain(vocabulary: &Vocabulary) -> bool {
    let has_all = |spell: &dyn Fn(u8) -> String| {
        let tokens: std::collections::HashSet<&str> = vocabulary.iter().map(|(_, t)| t).collect();
        (0..=255).all(|byte| tokens.contains(spell(byte).as_str()))
    };
    vocabulary.model == "gpt2"
        && vocabulary.pre.as_deref() != Some("qwen2")
        && vocabulary.token_types.iter().all(|kind| *kind == 1)
        && has_all(&|byte| byte_char(byte).into())
}

/// A refusal is a sentence.
fn is_said(failure: &super::failure::Failure) -> bool {
    assert!(!failure.message.is_empty());
    false
}
