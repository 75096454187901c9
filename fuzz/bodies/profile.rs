//! Profiles: what is accepted is written and read back to the same, and the text is settled then.

use mzcache::policy::Profile;

/// Reads the bytes as a profile's text; whether it is one.
pub fn profile(data: &[u8]) -> bool {
    match Profile::parse(data) {
        Ok(profile) => {
            let text = text_of(&profile);
            let again = Profile::parse(text.as_bytes());
            assert_eq!(again, Ok(profile));
            assert_eq!(again.map(|again| text_of(&again)), Ok(text));
            let codecs = profile.codecs.iter().flatten();
            let rates = codecs.flat_map(|c| [c.pack_bytes_per_s, c.unpack_bytes_per_s]);
            let device = [profile.read_bytes_per_s, profile.write_bytes_per_s];
            assert!(rates.chain(device).all(|rate| rate > 0));
            true
        }
        Err(error) => {
            let lines = 1 + data.iter().filter(|byte| **byte == b'\n').count();
            assert!(!error.what.is_empty());
            assert!((1..=lines).contains(&usize::try_from(error.value).unwrap()), "{error}");
            false
        }
    }
}

fn text_of(profile: &Profile) -> String {
    let mut text = String::new();
    profile.write(&mut text).unwrap();
    text
}
