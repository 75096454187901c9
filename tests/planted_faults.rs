//! Ten faults of the kinds that such code has, and which check finds each. Every run of the tests
//! looks whether each can still be planted. With `MZ_PLANT=1`, or a part of a fault's name, it is
//! planted in a copy of the tree, where the test that is named must then fail, and must have passed
//! before:
//!
//! ```text
//! MZ_PLANT=1 cargo test --test planted_faults -- --nocapture
//! ```

use std::path::{Path, PathBuf};
use std::process::Command;

struct Fault {
    name: &'static str,
    file: &'static str,
    /// What stands there, once in the file.
    from: &'static str,
    to: &'static str,
    /// Where the test is: `--lib`, or the name of a test program.
    program: &'static str,
    test: &'static str,
    /// What in that test finds it.
    checker: &'static str,
}

const SEEDS: &str = "seeds::seeds";

const FAULTS: [Fault; 10] = [
    Fault {
        name: "an off-by-one in T",
        file: "src/policy/threshold.rs",
        from: "times.read_weights(bytes).get() / unpack_chunk;",
        to: "times.read_weights(bytes).get() / unpack_chunk + 1;",
        program: "--lib",
        test: "policy::threshold::tests::equal_layers_give_the_formula_of_the_paper",
        checker: "the paper's formula, by hand",
    },
    Fault {
        name: "a forgotten clean flag",
        file: "src/state/evict.rs",
        from: "chunk.copies.contains(Copies::FLASH) && phase == Phase::Writing;",
        to: "chunk.flash_tokens > 0 && phase == Phase::Writing;",
        program: "sim",
        test: SEEDS,
        checker: "the reference: what is restored is what was committed last, and not lost",
    },
    Fault {
        name: "a missed gate",
        file: "src/runtime/pass.rs",
        from: "pub fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>> {
        self.wait(layer, Kind::Weights)?;",
        to: "pub fn weights(&self, layer: LayerIndex) -> Result<Lease<'_>> {",
        program: "sim",
        test: SEEDS,
        checker: "an error must be the consequence of a mishap",
    },
    Fault {
        name: "a swapped K/V offset",
        file: "src/codec/raw.rs",
        from: "&halves[part * part_values..][..part_values];",
        to: "&halves[(part ^ 1) * part_values..][..part_values];",
        program: "sim",
        test: SEEDS,
        checker: "the reference: a lossless codec changes no bit",
    },
    Fault {
        name: "a lost EINTR",
        file: "src/port/linux/transfer.rs",
        from: "libc::EINTR => true,",
        to: "libc::EINTR => false,",
        program: "port_faults",
        test: "interrupted_short_and_refused_writes_are_completed",
        checker: "strace interrupts the system call",
    },
    Fault {
        name: "a premature free",
        file: "src/port/buffers.rs",
        from: "if !entry.access.lock_to_release() {",
        to: "if entry.access.is_absent() {",
        program: "sim",
        test: SEEDS,
        checker: "what is leased is not evicted, and keeps its bytes",
    },
    Fault {
        name: "an unchecked length",
        file: "src/codec/header.rs",
        from: "if !allowed.contains(&payload_bytes) || ",
        to: "let _ = &allowed;\n    if ",
        program: "corpus",
        test: "packed_chunks_of_every_codec_are_accepted",
        checker: "forged headers under right checksums are refused, never a panic",
    },
    Fault {
        name: "a wrong order",
        file: "src/policy/order.rs",
        from: "LayerIndex::new(match self {
            Order::BackwardOut => count - 1 - position,",
        to: "LayerIndex::new(match self {
            Order::BackwardOut => position,",
        program: "sim",
        test: SEEDS,
        checker: "what stays of a backward-out eviction is a prefix",
    },
    Fault {
        name: "a stale table entry",
        file: "src/state/restore.rs",
        from: "let stale = forget.is_some() && !self.lossless && !is_twin;",
        to: "let stale = forget.is_some() && !self.lossless && !is_twin && self.clock == 0;",
        program: "sim",
        test: SEEDS,
        checker: "the reference: a second cycle changes nothing",
    },
    Fault {
        name: "a skipped checksum",
        file: "src/swap/file.rs",
        from: "if self.checksum.call(0, transfer) != record.crc {",
        to: "if transfer.is_empty() {",
        program: "sim",
        test: SEEDS,
        checker: "the reference: damaged bytes never become values",
    },
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn every_fault_can_be_planted() {
    for fault in &FAULTS {
        let text = std::fs::read_to_string(root().join(fault.file)).unwrap();
        let places = text.matches(fault.from).count();
        assert_eq!(places, 1, "{}: {} in {}", fault.name, fault.from, fault.file);
        assert!(!fault.checker.is_empty() && fault.from != fault.to);
    }
}

/// A copy of the tree, with a build folder of its own.
struct Copy(PathBuf);

impl Copy {
    fn new() -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("planted");
        let tree = folder.join("tree");
        let _ = std::fs::remove_dir_all(&tree);
        std::fs::create_dir_all(&tree).unwrap();
        for name in ["Cargo.toml", "Cargo.lock", "README.md", "build.rs", "src", "tests", "fuzz"]
            .into_iter()
            .chain(["asm", "kernels", "linker"])
        {
            let copied = Command::new("cp").arg("-r").arg(root().join(name)).arg(&tree).status();
            assert!(copied.unwrap().success(), "{name} cannot be copied");
        }
        Copy(folder)
    }

    /// Runs one test there; whether it passed, and what was printed.
    fn run(&self, program: &str, test: &str) -> (bool, String) {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(self.0.join("tree")).args(["test", "--offline", "--locked"]);
        match program {
            "--lib" => cargo.arg(program),
            program => cargo.args(["--test", program]),
        };
        cargo.args(["--", "--exact", test]).env("CARGO_TARGET_DIR", self.0.join("target"));
        let output = cargo.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(text.contains("running 1 test"), "{test} was not run: {text} {errors}");
        (output.status.success(), text)
    }
}

#[test]
fn every_fault_is_found() {
    let Ok(wanted) = std::env::var("MZ_PLANT") else { return };
    let copy = Copy::new();
    for fault in FAULTS.iter().filter(|fault| wanted == "1" || fault.name.contains(&wanted)) {
        let file = copy.0.join("tree").join(fault.file);
        let text = std::fs::read_to_string(&file).unwrap();
        let (passes, said) = copy.run(fault.program, fault.test);
        assert!(passes, "without {}: {said}", fault.name);
        std::fs::write(&file, text.replacen(fault.from, fault.to, 1)).unwrap();
        let (passes, said) = copy.run(fault.program, fault.test);
        std::fs::write(&file, text).unwrap();
        assert!(!passes, "{} goes unseen by {}", fault.name, fault.test);
        assert!(said.contains(&format!("test {} ... FAILED", fault.test)), "{said}");
        println!("{}: found by {} ({})", fault.name, fault.test, fault.checker);
    }
}
