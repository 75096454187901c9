//! Small model files, each named after what the reader must say about it. Fuzzers start from them.

use crate::support::fixture;
use mzcache::infer::gguf::Gguf;

#[test]
fn every_file_of_the_corpus_gives_what_its_name_says() {
    let mut files = 0;
    for entry in std::fs::read_dir(fixture("gguf")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let bytes = std::fs::read(&path).unwrap();
        let verdict = match Gguf::parse(&bytes) {
            Ok(file) => {
                for tensor in file.tensors() {
                    assert_eq!(file.tensor_bytes(&tensor).unwrap().len() as u64, tensor.bytes);
                }
                "ok".to_owned()
            }
            Err(error) => format!("{:?}", error.code).to_lowercase(),
        };
        assert_eq!(name.split('-').next(), Some(verdict.as_str()), "{name}");
        files += 1;
    }
    assert!(files >= 29);
}
