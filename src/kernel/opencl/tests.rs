use super::*;
use std::format;

fn shape(heads: u32, kv_heads: u32, head_dim: u32, queries: u32) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim, queries }
}

/// The value of `#define NAME value` in a piece of source.
fn defined(source: Source, name: &str) -> Option<u32> {
    let text = source.pieces.last()?;
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")))?;
    line.parse().ok()
}

#[test]
fn every_source_defines_its_entry_point_and_describes_it() {
    for source in SOURCES {
        let name = source.name.to_str().unwrap();
        let text = source.pieces.last().unwrap();
        assert!(text.contains(&format!("void {name}(")), "{name}");
        assert!(text.contains(&format!("\n// {name}\n")), "{name}");
    }
}

#[test]
fn launches_agree_with_the_sources() {
    let item = |launch: Launch| u32::try_from(launch.local[0]).ok();
    assert_eq!(defined(MATMUL_FEW, "FEW_WIDTH"), item(few_launch(1)));
    assert_eq!(defined(MATMUL_MANY, "MANY_ROWS"), Some(64));
    assert_eq!(defined(MATMUL_MANY, "MANY_TOKENS"), Some(32));
    assert_eq!(item(many_launch(1, 1)), Some(64 / 4 * (32 / 4)));
    assert_eq!(defined(ARGMAX, "ARGMAX_WIDTH"), item(argmax_launch(1)));
    assert_eq!(defined(RMS_NORM, "NORM_WIDTH"), item(norm_launch(1)));
    assert_eq!(defined(HEADS, "HEADS_WIDTH"), item(heads_launch(1, 1, 1)));
    assert_eq!(defined(ENERGY, "ENERGY_WIDTH"), item(energy_launch(64)));
    let channels = defined(ENERGY, "ENERGY_CHANNELS").unwrap() as usize;
    assert_eq!(energy_launch(5 * channels).groups, [5, 1, 1]);
    assert!(ARGMAX.pieces[1].contains(&format!("#define ARGMAX_NONE {ARGMAX_NONE:#x}u\n")));
    let stream = AttentionStream::new(shape(16, 8, 128, 8), 1 << 16).unwrap();
    assert_eq!(defined(ATTENTION_COMBINE, "COMBINE_WIDTH"), item(stream.combine_launch()));
    assert_eq!(defined(ATTENTION_TILE, "KEYS"), Some(32));
    assert_eq!(defined(ATTENTION_TILE, "ACROSS"), Some(16));
    let formats = ["F32", "F16", "Q8_0", "Q4_0", "Q4_1", "BF16", "Q4_K", "Q6_K"];
    for (weights, name) in Weights::ALL.into_iter().zip(formats) {
        let line = format!("#define WEIGHTS_{name} {}\n", weights.format().1);
        assert!(WEIGHTS.contains(&line), "{line}");
    }
    let finishes = ["STORE", "ADD", "GATE", "PAIR"];
    for (finish, name) in
        [Finish::Store, Finish::Add, Finish::Gate, Finish::Pair].into_iter().zip(finishes)
    {
        let line = format!("#define FINISH_{name} {}\n", finish.number());
        assert!(ROWS.contains(&line), "{line}");
    }
    assert!(ROWS.contains("#define NOWHERE 0xffffffffffffffffUL\n"));
}

#[test]
fn rows_of_a_launch_are_those_of_its_matrices() {
    assert_eq!(Finish::Store.rows([5, 3, 3]), 11);
    assert_eq!(Finish::Add.rows([7]), 7);
    // In fours: two of one matrix, two of the other.
    assert_eq!(Finish::Pair.rows([6, 6]), 12);
    assert_eq!(Finish::Pair.rows([5, 5]), 12);
}

#[test]
fn rows_follow_the_shape_and_the_local_memory() {
    let rows = |heads, kv_heads, head_dim, queries, local_bytes| {
        let build = AttentionStream::new(shape(heads, kv_heads, head_dim, queries), local_bytes);
        build.map(|build| build.macros()[1].1)
    };
    assert_eq!(rows(16, 8, 128, 8, 1 << 16), Some(16));
    assert_eq!(rows(16, 8, 128, 1, 1 << 16), Some(2));
    assert_eq!(rows(9, 3, 64, 1, 1 << 16), Some(3));
    assert_eq!(rows(10, 2, 64, 1, 1 << 16), Some(8));
    assert_eq!(rows(32, 8, 64, 8, 1 << 16), Some(16));
    assert_eq!(rows(16, 8, 256, 8, 1 << 15), Some(12));
    assert_eq!(rows(16, 8, 128, 8, 8000), Some(4));
    assert_eq!(rows(16, 8, 128, 8, 5000), Some(2));
    assert_eq!(rows(16, 8, 128, 8, 1000), None);
    assert_eq!(rows(16, 3, 128, 8, 1 << 16), None);
    assert_eq!(rows(16, 8, 100, 8, 1 << 16), None);
    assert_eq!(rows(16, 8, 264, 8, 1 << 16), None);
}

#[test]
fn matrix_units_take_two_head_sizes() {
    for head_dim in (32..=256).step_by(8) {
        let build = AttentionMatrix::new(shape(16, 8, head_dim, 8));
        assert_eq!(build.is_some(), matches!(head_dim, 64 | 128));
    }
    let blocks = |heads, head_dim, queries| {
        let build = AttentionMatrix::new(shape(heads, 8, head_dim, queries)).unwrap();
        (build.macros()[1], build.counters())
    };
    assert_eq!(blocks(32, 64, 8), (("MZ_BLOCKS", 2), 8));
    assert_eq!(blocks(32, 64, 4), (("MZ_BLOCKS", 1), 8));
    assert_eq!(blocks(32, 128, 8), (("MZ_BLOCKS", 1), 16));
    let build = AttentionMatrix::new(shape(32, 8, 128, 8)).unwrap();
    assert_eq!(build.launch(5), Launch { groups: [10, 8, 1], local: [256, 1, 1] });
    assert_eq!(build.scratch(5), (5 * 256 * 128, 5 * 256));
    assert_eq!(defined(ATTENTION_MATRIX, "WARPS"), Some(256 / 32));
}

#[test]
fn warps_share_all_keys_evenly() {
    for head_dim in [64, 128] {
        let build = AttentionMatrix::new(shape(16, 8, head_dim, 8)).unwrap();
        let step_keys = 2048 / head_dim;
        for end in (8..70_000).step_by(61) {
            for first_seen in [0, end / 2, end - 8] {
                for groups in [1, 16, 132, 1000] {
                    let KeySplit { splits, warp_steps } = build.split(first_seen, end, groups);
                    let steps = end.div_ceil(step_keys) - first_seen / step_keys;
                    assert!(splits >= 1 && splits <= build.splits_max(groups));
                    assert!(splits * 8 * warp_steps >= steps);
                    assert!((splits - 1) * 8 * warp_steps < steps, "a split without keys");
                    assert!((warp_steps - 1) * build.splits_max(groups) * 8 < steps);
                }
            }
        }
    }
    let build = AttentionMatrix::new(shape(16, 8, 128, 8)).unwrap();
    assert_eq!(build.split(0, 32768, 132), KeySplit { splits: 16, warp_steps: 16 });
}

#[test]
fn splits_cover_all_chunks_and_make_about_as_many_groups_as_asked_for() {
    let stream = AttentionStream::new(shape(16, 8, 128, 8), 1 << 16).unwrap();
    assert_eq!(stream.split_chunks(128, 1056), 1);
    assert_eq!(stream.split_chunks(128, 512), 2);
    assert_eq!(stream.split_chunks(128, 1), 128);
    assert_eq!(stream.split_chunks(1, 1056), 1);
    for chunks in 1..=130 {
        for groups in [1, 16, 100, 1000] {
            let each = stream.split_chunks(chunks, groups);
            assert!(each >= 1);
            assert!(chunks.div_ceil(each) * 8 <= groups.max(8));
        }
    }
    assert_eq!(stream.launch(3), Launch { groups: [3, 8, 1], local: [64, 1, 1] });
    assert_eq!(stream.scratch(3), (3 * 128 * 128, 3 * 128));
}

#[test]
fn a_table_entry_lies_as_the_kernels_read_it() {
    let bytes = TableEntry::f16(0x0102_0304_0506_0708, 9).to_bytes();
    assert_eq!(bytes[..8], 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(bytes[8..12], 1u32.to_ne_bytes());
    assert_eq!(bytes[12..], 9u32.to_ne_bytes());
    assert!(COMMON.contains("#define KIND_F16 1\n"));
    assert!(COMMON.contains("    ulong address;\n    uint kind;\n    uint tokens;\n"));
}
