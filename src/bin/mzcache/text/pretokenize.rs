//! How the model families cut text into words before BPE merges within them.
//!
//! `tokenizer.ggml.pre` names the family. A wrong cut gives valid but wrong tokens, so a name that
//! is not known is refused rather than guessed.

use super::failure::{Failure, Outcome};
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::SplitDelimiterBehavior;

const DIGIT: &str = r"\p{N}";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
/// What files without a name get; the same as the common reader of such files does.
const DEFAULT: [&str; 4] = [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// How one family is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Applied one after the other, each cutting the pieces of the one before.
    pub cuts: &'static [&'static str],
    /// A word that is a token is taken whole, whatever the merges say.
    pub ignore_merges: bool,
    /// Text is brought to Unicode's composed form first.
    pub is_composed: bool,
    /// Whether a context begins with BOS where the file does not say.
    pub add_bos: bool,
}

const fn family(cuts: &'static [&'static str]) -> Family {
    Family { cuts, ignore_merges: false, is_composed: false, add_bos: false }
}

/// The family of that name; without a name the default, which the caller should warn about.
pub fn find(name: Option<&str>) -> Outcome<Family> {
    let Some(name) = name else { return Ok(family(&DEFAULT)) };
    Ok(match name {
        "default" => family(&DEFAULT),
        "gpt-2" | "phi-2" | "olmo" | "mpt" | "jais" | "exaone4" | "modern-bert" => family(&[GPT2]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" | "minerva-7b" => {
            family(&[DIGIT, GPT2])
        }
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "lfm2" => {
            Family { ignore_merges: true, add_bos: true, ..family(&[LLAMA3]) }
        }
        "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => family(&[LLAMA3]),
        "qwen2" | "deepseek-r1-qwen" | "megrez" => Family { is_composed: true, ..family(&[QWEN2]) },
        "stablelm2" => family(&[QWEN2]),
        "gpt-4o" | "llama4" => family(&[GPT4O]),
        "tekken" => Family { ignore_merges: true, add_bos: true, ..family(&[TEKKEN]) },
        _ => {
            let message = format!("tokenizer.ggml.pre: `{name}` is not known to this build");
            return Err(Failure::new(message).hint(
                "use a model of the SmolLM2, Llama 3, Qwen 2/3, EXAONE, GPT-2, GPT-4o or Tekken \
                 tokenizer family, or one with a SentencePiece vocabulary",
            ));
        }
    })
}

impl Family {
    /// The cuts, then bytes as characters.
    pub fn build(&self) -> tokenizers::Result<PreTokenizerWrapper> {
        let mut steps = Vec::with_capacity(self.cuts.len() + 1);
        for cut in self.cuts {
            let pattern = SplitPattern::Regex((*cut).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?;
            steps.push(PreTokenizerWrapper::Split(split));
        }
        steps.push(PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, false, false)));
        Ok(PreTokenizerWrapper::Sequence(Sequence::new(steps)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::bytes::from_char;
    use super::*;
    use tokenizers::tokenizer::{OffsetReferential, OffsetType};
    use tokenizers::{PreTokenizedString, PreTokenizer};

    fn words(name: Option<&str>, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        find(name).unwrap().build().unwrap().pre_tokenize(&mut pieces).unwrap();
        let splits = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let plain = |word: &str| {
            let bytes = word.chars().map(|char| from_char(char).unwrap()).collect();
            String::from_utf8(bytes).unwrap()
        };
        splits.into_iter().map(|(word, _, _)| plain(word)).collect()
    }

    #[test]
    fn families_cut_as_their_models_were_trained() {
        let text = "I'M ok's 12345 x\n\n  y!?";
        assert_eq!(
            words(Some("gpt-2"), text),
            ["I", "'", "M", " ok", "'s", " 12345", " x", "\n\n ", " y", "!?"]
        );
        assert_eq!(
            words(Some("smollm"), text),
            ["I", "'", "M", " ok", "'s", " ", "1", "2", "3", "4", "5", " x", "\n\n ", " y", "!?"]
        );
        assert_eq!(
            words(Some("llama-bpe"), text),
            ["I", "'M", " ok", "'s", " ", "123", "45", " x", "\n\n", " ", " y", "!?"]
        );
        assert_eq!(
            words(Some("qwen2"), text),
            ["I", "'M", " ok", "'s", " ", "1", "2", "3", "4", "5", " x", "\n\n", " ", " y", "!?"]
        );
        assert_eq!(words(Some("gpt-4o"), "CamelCase's a/"), ["Camel", "Case's", " a", "/"]);
        assert_eq!(words(Some("tekken"), "CamelCase 12"), ["Camel", "Case", " ", "1", "2"]);
        assert_eq!(words(None, "a+b 1234"), ["a", "+", "b", " ", "123", "4"]);
    }

    #[test]
    fn every_byte_of_any_text_is_kept() {
        let text = "naïve 中文 🦀\u{200d}\r\n\t\u{3000}Ⅻ ½ ß' 'S ''ll\0\u{feff}";
        let names = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "gpt-4o", "tekken"];
        for name in names {
            assert_eq!(words(Some(name), text).concat(), text, "{name}");
        }
    }

    #[test]
    fn an_unknown_name_is_refused() {
        let failure = find(Some("brand-new")).unwrap_err();
        assert!(failure.message.contains("`brand-new`"), "{failure}");
        assert!(failure.hint.is_some());
    }
}
