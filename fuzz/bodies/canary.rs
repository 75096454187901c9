//! A planted failure. A fuzzer that does not find it within seconds is not fuzzing.

/// Panics when the bytes begin with "mzKV", which must be found one byte after the other;
/// whether the first was right.
pub fn canary(data: &[u8]) -> bool {
    let mut matching = 0;
    for (byte, expected) in data.iter().zip(b"mzKV") {
        if byte != expected {
            return matching > 0;
        }
        matching += 1;
    }
    assert!(matching < 4, "the canary was found");
    matching > 0
}
