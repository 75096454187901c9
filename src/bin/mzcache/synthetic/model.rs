//! A whole model of random weights, and its place in the cache directory.

use super::container::Head;
use super::weights::{Fill, HEAD_NORM, OUTPUT_NORM, Weights};
use super::words::{END_OF_TEXT, TURN_END, TURN_START, Words};
use crate::amount::Size;
use crate::failure::{Failure, Outcome};
use crate::paths;
use crate::place::{self, Placed};
use crate::progress::Bars;
use crate::shape::{Config, Shape};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// Counts up whenever the same shape would get other bytes, so that old files are not reused.
const VERSION: u32 = 1;
const SEED: u64 = 0x6D7A_6361_6368_6500;
/// `general.file_type` of F16.
const FILE_TYPE_F16: u32 = 1;

const CHAT_TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' \
    + message.content + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}\
    {{ '<|im_start|>assistant\\n' }}{% endif %}";

struct Tensor {
    name: String,
    columns: u32,
    rows: u32,
    fill: Fill,
}

/// A model that is yet to be written: its head, and what follows.
pub struct Model {
    config: Config,
    /// The file's name says how many layers it has where those are not all.
    suffix: String,
    tensors: Vec<Tensor>,
    head: Vec<u8>,
    file_bytes: u64,
}

impl Model {
    pub fn new(shape: Shape) -> Self {
        Model::of(*shape.config(), String::new())
    }

    /// The same with its first layers only.
    pub fn with_layers(shape: Shape, layers: u32) -> Self {
        let config = *shape.config();
        match layers < config.layers {
            true => Model::of(Config { layers, ..config }, format!("-{layers}-layers")),
            false => Model::new(shape),
        }
    }

    fn of(config: Config, suffix: String) -> Self {
        let tensors = tensors(&config);
        let mut head = metadata(&config);
        for tensor in &tensors {
            let shape = [tensor.columns, tensor.rows];
            let sides = if tensor.rows == 1 { &shape[..1] } else { &shape[..] };
            head.tensor(&tensor.name, sides, tensor.fill.storage());
        }
        let (head, file_bytes) = head.finish();
        Model { config, suffix, tensors, head, file_bytes }
    }

    /// Length of the file.
    #[cfg(test)]
    pub const fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Its file in that directory.
    pub fn path(&self, directory: &Path) -> PathBuf {
        directory.join(format!("{}{}-random-f16-v{VERSION}.gguf", self.config.name, self.suffix))
    }

    /// Whether the file is there, whole, and of this model: its length and its whole head.
    pub fn is_complete(&self, path: &Path) -> bool {
        let matches = || -> io::Result<bool> {
            let mut file = File::open(path)?;
            if file.metadata()?.len() != self.file_bytes {
                return Ok(false);
            }
            let mut head = vec![0; self.head.len()];
            file.read_exact(&mut head)?;
            Ok(head == self.head)
        };
        matches().unwrap_or(false)
    }

    /// Writes all of it; `written` hears of bytes as they go out.
    pub fn write(&self, out: &mut dyn Write, written: &dyn Fn(u64)) -> io::Result<()> {
        out.write_all(&self.head)?;
        written(self.head.len() as u64);
        let mut weights = Weights::new(SEED, out, written);
        for (index, tensor) in (0..).zip(&self.tensors) {
            weights.tensor(index, tensor.columns, tensor.rows, &tensor.fill)?;
        }
        Ok(())
    }
}

/// The file of that model; written first if it is not there. `notes` hears of what happens.
pub fn ensure(
    model: &Model,
    directory: &Path,
    bars: Bars,
    notes: &mut dyn FnMut(&str),
) -> Outcome<PathBuf> {
    let path = model.path(directory);
    let size = Size(model.file_bytes);
    if model.is_complete(&path) {
        notes(&format!("using {} ({size}, random weights)", path.display()));
        return Ok(path);
    }
    paths::create(directory)?;
    notes(&format!("writing a model with random weights once: {} ({size})", path.display()));
    let bar = bars.bytes("writing", model.file_bytes);
    let fill = |out: &mut dyn Write| model.write(out, &|bytes| bar.inc(bytes));
    let placed = place::place(&path, model.file_bytes, || model.is_complete(&path), fill);
    bar.finish_and_clear();
    if placed? == Placed::AlreadyThere {
        notes("another mzcache has just written it");
    }
    if model.is_complete(&path) {
        return Ok(path);
    }
    Err(Failure::new(format!("{} is not what was just written", path.display()))
        .hint("check the storage, or choose another with --cache-dir DIR"))
}

fn metadata(config: &Config) -> Head {
    let mut head = Head::default();
    let arch = config.wiring.name();
    head.string("general.architecture", arch);
    head.string("general.name", &format!("{} with random weights", config.name));
    head.u32("general.file_type", FILE_TYPE_F16);
    head.u32("mzcache.synthetic.version", VERSION);
    let numbers = [
        ("block_count", config.layers),
        ("context_length", config.context),
        ("embedding_length", config.width),
        ("feed_forward_length", config.feed_forward),
        ("attention.head_count", config.heads),
        ("attention.head_count_kv", config.kv_heads),
        ("attention.key_length", config.head_dim),
        ("attention.value_length", config.head_dim),
        ("rope.dimension_count", config.head_dim),
        ("vocab_size", config.vocabulary),
    ];
    for (key, value) in numbers {
        head.u32(&format!("{arch}.{key}"), value);
    }
    head.f32(&format!("{arch}.rope.freq_base"), config.rope_base);
    head.f32(&format!("{arch}.attention.layer_norm_rms_epsilon"), config.norm_epsilon);
    let words = Words::new(config.vocabulary);
    head.string("tokenizer.ggml.model", "gpt2");
    head.string("tokenizer.ggml.pre", "gpt-2");
    head.strings("tokenizer.ggml.tokens", &words.tokens);
    head.i32s("tokenizer.ggml.token_type", &words.kinds);
    head.strings("tokenizer.ggml.merges", &words.merges);
    head.u32("tokenizer.ggml.bos_token_id", TURN_START);
    head.u32("tokenizer.ggml.eos_token_id", TURN_END);
    head.u32("tokenizer.ggml.unknown_token_id", END_OF_TEXT);
    head.bool("tokenizer.ggml.add_bos_token", false);
    head.string("tokenizer.chat_template", CHAT_TEMPLATE);
    head
}

fn tensors(config: &Config) -> Vec<Tensor> {
    let mut all = Vec::new();
    let mut add = |name: String, columns, rows, fill| {
        all.push(Tensor { name, columns, rows, fill });
    };
    if let Some(scaling) = config.rope_scaling {
        let divisors = scaling.divisors(config.rope_base, config.head_dim);
        add("rope_freqs.weight".to_owned(), config.head_dim / 2, 1, Fill::Values(divisors));
    }
    add("token_embd.weight".to_owned(), config.width, config.vocabulary, Fill::Embedding);
    for layer in 0..config.layers {
        for (name, columns, rows, fill) in block(config) {
            add(format!("blk.{layer}.{name}.weight"), columns, rows, fill);
        }
    }
    add("output_norm.weight".to_owned(), config.width, 1, Fill::Constant(OUTPUT_NORM));
    all
}

/// The tensors of one layer: name, columns (inputs), rows (outputs), content.
fn block(config: &Config) -> Vec<(&'static str, u32, u32, Fill)> {
    let width = config.width;
    let inner = config.feed_forward;
    let query = config.heads * config.head_dim;
    let kv = config.kv_heads * config.head_dim;
    let mut tensors = vec![
        ("attn_norm", width, 1, Fill::Constant(1.0)),
        ("attn_q", width, query, Fill::scoring(width)),
        ("attn_k", width, kv, Fill::scoring(width)),
        ("attn_v", width, kv, Fill::keeping(width)),
        ("attn_output", query, width, Fill::attending(query)),
        ("ffn_norm", width, 1, Fill::Constant(1.0)),
        ("ffn_gate", width, inner, Fill::keeping(width)),
        ("ffn_up", width, inner, Fill::keeping(width)),
        ("ffn_down", inner, width, Fill::keeping(inner)),
    ];
    if config.wiring.has_head_norms() {
        tensors.push(("attn_q_norm", config.head_dim, 1, Fill::Constant(HEAD_NORM)));
        tensors.push(("attn_k_norm", config.head_dim, 1, Fill::Constant(HEAD_NORM)));
    }
    tensors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::{Special, Tokenizer, Vocabulary};
    use clap::ValueEnum;
    use mzcache::infer::gguf::Gguf;

    const ALIGN_BYTES: u8 = 32;

    fn ensure_quietly(directory: &Path) -> (Outcome<PathBuf>, Vec<String>) {
        let mut notes = Vec::new();
        let path = ensure(&Model::new(Shape::Tiny), directory, Bars::Hidden, &mut |note| {
            notes.push(note.to_owned());
        });
        (path, notes)
    }

    #[test]
    fn it_is_written_once_and_reused() {
        let directory = tempfile::tempdir().unwrap();
        let models = directory.path().join("models");
        let (path, notes) = ensure_quietly(&models);
        let path = path.unwrap();
        assert!(notes[0].contains("writing a model with random weights once"), "{notes:?}");
        assert!(notes[0].contains("MiB"), "{notes:?}");
        let first = std::fs::read(&path).unwrap();
        let (again, notes) = ensure_quietly(&models);
        assert_eq!(again.unwrap(), path);
        assert!(notes[0].starts_with("using "), "{notes:?}");
        assert_eq!(std::fs::read(&path).unwrap(), first);
        assert_eq!(std::fs::read_dir(&models).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_or_short_file_is_written_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = ensure_quietly(directory.path()).0.unwrap();
        let whole = std::fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        flipped[100] ^= 1;
        for bad in [&whole[..whole.len() - 1], &whole[..10], &[], &flipped] {
            std::fs::write(&path, bad).unwrap();
            let (path, notes) = ensure_quietly(directory.path());
            assert!(notes[0].starts_with("writing"), "{notes:?}");
            assert!(std::fs::read(path.unwrap()).unwrap() == whole);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        let failure = ensure_quietly(&file.join("models")).0.unwrap_err();
        assert!(failure.hint.is_some_and(|hint| hint.contains("--cache-dir")));
    }

    /// The library's reader checks every length, name and range of the file.
    #[test]
    fn the_library_reads_what_was_written() {
        let mut bytes = Vec::new();
        Model::new(Shape::Tiny).write(&mut bytes, &|_| ()).unwrap();
        let gguf = Gguf::parse(&bytes).unwrap();
        let config = Shape::Tiny.config();
        let shape = mzcache::infer::model::Shape::read(&gguf).unwrap();
        assert_eq!(u32::from(shape.layers), config.layers);
        assert_eq!(u32::from(shape.head_dim), config.head_dim);
        assert_eq!(shape.vocabulary, config.vocabulary as usize);
        let mut sizer = mzcache::arena::Sizer::new();
        mzcache::infer::Model::size(&gguf, &mut sizer).unwrap();
        let last = gguf.tensors().last().unwrap();
        let end = (last.file_offset + last.bytes).next_multiple_of(u64::from(ALIGN_BYTES));
        assert_eq!(end, bytes.len() as u64);
    }

    /// Takes so many bytes and then refuses.
    struct First<'a>(&'a mut File, usize);

    impl Write for First<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.0.write(&bytes[..bytes.len().min(self.1)])?;
            self.1 -= count;
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    /// The head and the first tensor (rotary divisors, where there are any), with a hole behind.
    #[test]
    fn heads_of_large_shapes_are_models_too() {
        for shape in Shape::value_variants() {
            let directory = tempfile::tempdir().unwrap();
            let model = Model::new(*shape);
            let path = directory.path().join("sparse.gguf");
            let mut file = File::create(&path).unwrap();
            let bytes = model.head.len() + 4096;
            assert!(model.write(&mut First(&mut file, bytes), &|_| ()).is_err());
            file.set_len(model.file_bytes).unwrap();
            let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let file = mzcache::port::linux::MappedFile::open(&path).unwrap();
            let gguf = Gguf::parse(&file).unwrap();
            let mut sizer = mzcache::arena::Sizer::new();
            mzcache::infer::Model::size(&gguf, &mut sizer).unwrap();
            assert!(model.is_complete(Path::new(path.to_str().unwrap())));
        }
    }

    #[test]
    fn as_many_bytes_are_written_as_promised() {
        let model = Model::new(Shape::Tiny);
        let heard = std::cell::Cell::new(0);
        let mut out = Vec::new();
        model.write(&mut out, &|bytes| heard.set(heard.get() + bytes)).unwrap();
        assert_eq!((out.len() as u64, heard.get()), (model.file_bytes, model.file_bytes));
    }

    #[test]
    fn sizes_are_those_of_the_models() {
        let megabytes = |shape| Model::new(shape).file_bytes() / 1_000_000;
        assert_eq!(megabytes(Shape::Smollm2_135m), 270);
        assert_eq!(megabytes(Shape::Qwen3_0_6b), 1195);
        for shape in Shape::value_variants() {
            assert!(Model::new(*shape).path(Path::new("m")).starts_with("m"));
        }
    }

    #[test]
    fn fewer_layers_are_a_file_of_their_own() {
        let all = Model::new(Shape::Tiny);
        let some = Model::with_layers(Shape::Tiny, 2);
        assert_ne!(some.path(Path::new("")), all.path(Path::new("")));
        assert!(some.file_bytes() < all.file_bytes());
        let more = Model::with_layers(Shape::Tiny, 99);
        assert_eq!(more.path(Path::new("")), all.path(Path::new("")));
    }

    #[test]
    fn its_vocabulary_writes_any_text() {
        let mut bytes = Vec::new();
        Model::new(Shape::Tiny).write(&mut bytes, &|_| ()).unwrap();
        let vocabulary = Vocabulary::read(&Gguf::parse(&bytes).unwrap()).unwrap();
        let mut tokenizer = Tokenizer::new(vocabulary).unwrap();
        let text = "bada: 中文 🦀\n naïve <|im_end|>";
        let encoded = tokenizer.encode(text, Special::AsText).unwrap();
        assert_eq!(encoded.bytes_lost, 0);
        assert_eq!(tokenizer.decode(&encoded.ids), text);
        assert_eq!(tokenizer.stop_tokens(), [END_OF_TEXT, TURN_END]);
    }
}
