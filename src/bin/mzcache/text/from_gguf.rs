//! The vocabulary out of a model file's metadata.

use super::failure::{Failure, Outcome};
use super::vocabulary::{TOKENS_MAX, Vocabulary};
use mzcache::infer::gguf::{Gguf, Scalar};
use mzcache::{Code, Error};

impl Vocabulary {
    /// Reads the `tokenizer.*` keys. What is absent stays empty; what is there must be of its type.
    pub fn read(gguf: &Gguf<'_>) -> Outcome<Vocabulary> {
        let text = |key| Ok::<_, Failure>(gguf.text(key)?.map(str::to_owned));
        let strings = |key| list(gguf, key, |item| String::from_utf8(item.bytes()?.to_vec()).ok());
        let model = text("tokenizer.ggml.model")?;
        Ok(Vocabulary {
            model: model.ok_or(Error::new(Code::Corrupt, "tokenizer.ggml.model is missing"))?,
            pre: text("tokenizer.ggml.pre")?,
            tokens: strings("tokenizer.ggml.tokens")?,
            scores: list(gguf, "tokenizer.ggml.scores", single)?,
            token_types: list(gguf, "tokenizer.ggml.token_type", |item| {
                i32::try_from(item.signed()?).ok()
            })?,
            merges: strings("tokenizer.ggml.merges")?,
            bos: gguf.u32("tokenizer.ggml.bos_token_id")?,
            eos: gguf.u32("tokenizer.ggml.eos_token_id")?,
            unk: gguf.u32("tokenizer.ggml.unknown_token_id")?,
            add_bos: gguf.bool("tokenizer.ggml.add_bos_token")?,
            add_space_prefix: gguf.bool("tokenizer.ggml.add_space_prefix")?,
            chat_template: text("tokenizer.chat_template")?,
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "files hold single precision")]
fn single(item: Scalar<'_>) -> Option<f32> {
    Some(item.float()? as f32)
}

fn list<T>(
    gguf: &Gguf<'_>,
    key: &'static str,
    convert: impl Fn(Scalar<'_>) -> Option<T>,
) -> Outcome<Vec<T>> {
    let Some(array) = gguf.array(key)? else { return Ok(Vec::new()) };
    if array.count() > TOKENS_MAX as u64 {
        return Err(Error::new(Code::LimitExceeded, key).with(array.count()).into());
    }
    let items = array.items().zip(0u32..).map(|(item, index)| {
        convert(item).ok_or_else(|| Error::new(Code::Corrupt, key).with(index).into())
    });
    items.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of metadata only; each entry is a key, its type number and its bytes.
    fn file(entries: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(0u64.to_le_bytes());
        bytes.extend((entries.len() as u64).to_le_bytes());
        for (key, kind, value) in entries {
            bytes.extend(string(key.as_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(value);
        }
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes
    }

    fn string(text: &[u8]) -> Vec<u8> {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text);
        bytes
    }

    fn array(kind: u32, items: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((items.len() as u64).to_le_bytes());
        bytes.extend(items.concat());
        bytes
    }

    fn read(entries: &[(&str, u32, Vec<u8>)]) -> Outcome<Vocabulary> {
        let bytes = file(entries);
        Vocabulary::read(&Gguf::parse(&bytes).unwrap())
    }

    fn model() -> (&'static str, u32, Vec<u8>) {
        ("tokenizer.ggml.model", 8, string(b"llama"))
    }

    #[test]
    fn keys_become_fields() {
        let vocabulary = read(&[
            model(),
            ("tokenizer.ggml.tokens", 9, array(8, &[string(b"a"), string("\u{2581}b".as_bytes())])),
            (
                "tokenizer.ggml.scores",
                9,
                array(6, &[1.5f32, -2.0].map(|x| x.to_le_bytes().to_vec())),
            ),
            (
                "tokenizer.ggml.token_type",
                9,
                array(5, &[1i32, 6].map(|x| x.to_le_bytes().to_vec())),
            ),
            ("tokenizer.ggml.bos_token_id", 4, 1u32.to_le_bytes().to_vec()),
            ("tokenizer.ggml.add_bos_token", 7, vec![1]),
            ("tokenizer.chat_template", 8, string(b"{{ x }}")),
        ])
        .unwrap();
        assert_eq!(vocabulary.model, "llama");
        assert_eq!(vocabulary.tokens, ["a", "\u{2581}b"]);
        assert_eq!(vocabulary.scores, [1.5, -2.0]);
        assert_eq!(vocabulary.token_types, [1, 6]);
        assert_eq!((vocabulary.bos, vocabulary.eos), (Some(1), None));
        assert_eq!((vocabulary.add_bos, vocabulary.add_space_prefix), (Some(true), None));
        assert_eq!(vocabulary.chat_template.as_deref(), Some("{{ x }}"));
        assert!(vocabulary.merges.is_empty());
    }

    #[test]
    fn wrong_types_and_bytes_are_named() {
        let bad_text = array(8, &[string(b"a"), string(b"\xFF")]);
        let cases: [(&str, u32, Vec<u8>); 5] = [
            ("tokenizer.ggml.tokens", 9, bad_text),
            ("tokenizer.ggml.tokens", 8, string(b"a")),
            ("tokenizer.ggml.scores", 9, array(4, &[vec![0; 4]])),
            ("tokenizer.ggml.token_type", 9, array(6, &[vec![0; 4]])),
            ("tokenizer.ggml.bos_token_id", 8, string(b"1")),
        ];
        for case in cases {
            let key = case.0;
            let failure = read(&[model(), case]).unwrap_err();
            assert!(failure.message.contains(key), "{key}: {failure}");
        }
        assert!(read(&[]).unwrap_err().message.contains("tokenizer.ggml.model is missing"));
        let many = vec![vec![0]; TOKENS_MAX + 1];
        let failure = read(&[model(), ("tokenizer.ggml.scores", 9, array(0, &many))]).unwrap_err();
        assert!(failure.message.contains("limit exceeded"), "{failure}");
    }
}
