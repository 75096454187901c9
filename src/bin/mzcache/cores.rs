//! `--cores`: which worker threads run on which cores, as people write it.

use mzcache::port::affinity::{CoreList, CoreMap};
use mzcache::port::linux::host_topology;

/// What `--cores` asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cores {
    /// By what the machine says of its cores.
    Auto,
    /// By this map.
    Map(Box<CoreMap>),
}

impl Cores {
    /// Nothing is pinned.
    pub fn anywhere() -> Self {
        Cores::Map(Box::new(CoreMap::ANYWHERE))
    }

    /// The map to use on this machine, at this moment.
    pub fn map(&self) -> CoreMap {
        match self {
            Cores::Auto => CoreMap::rank(&host_topology()),
            Cores::Map(map) => **map,
        }
    }
}

/// `auto`, `none`, a chip, or a map: `read=6,7;unpack=6,7;allocate=2-5`.
pub fn parse(text: &str) -> Result<Cores, String> {
    let map = match text {
        "auto" => return Ok(Cores::Auto),
        "none" => CoreMap::ANYWHERE,
        "sm8750" => CoreMap::SM8750,
        "sm8650" => CoreMap::SM8650,
        text => parse_map(text)?,
    };
    Ok(Cores::Map(Box::new(map)))
}

fn parse_map(text: &str) -> Result<CoreMap, String> {
    let mut map = CoreMap::ANYWHERE;
    for part in text.split(';') {
        let Some((role, cores)) = part.split_once('=') else {
            return Err("write auto, none, sm8750, sm8650, or a map such as \
                        read=6,7;unpack=6,7;allocate=2-5"
                .into());
        };
        let list = match role.trim() {
            "allocate" => &mut map.allocate,
            "read" => &mut map.read,
            "unpack" => &mut map.unpack,
            other => return Err(format!("`{other}` is no role; they are allocate, read, unpack")),
        };
        if !list.is_empty() {
            return Err(format!("`{}` is there twice", role.trim()));
        }
        for range in cores.split(',') {
            push_range(list, range.trim())?;
        }
    }
    Ok(map)
}

/// A core, or the first and last of several.
fn push_range(list: &mut CoreList, text: &str) -> Result<(), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| {
        // `parse` would take a sign.
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| is_number)
    };
    let (Some(first), Some(last)) = (number(first), number(last)) else {
        return Err(format!("`{text}` is no core; write a number, or a range such as 2-5"));
    };
    if first > last {
        return Err(format!("`{text}` ends before it begins"));
    }
    match (first..=last).find(|core| !list.push(*core)) {
        Some(core) => Err(format!("core {core} is there twice, or is one too many")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(text: &str) -> [Vec<u16>; 3] {
        let CoreMap { allocate, read, unpack } = parse(text).unwrap().map();
        [allocate, read, unpack].map(|list| list.to_vec())
    }

    #[test]
    fn maps_name_cores_and_ranges_in_any_order() {
        let expected = [vec![2, 3, 4, 5], vec![6, 7], vec![7, 6]];
        assert_eq!(lists("read=6,7;unpack=7,6;allocate=2-5"), expected);
        assert_eq!(lists("allocate = 2,3, 4-5 ; unpack=7,6;read=6-7"), expected);
        assert_eq!(lists("unpack=65535"), [vec![], vec![], vec![65535]]);
        assert_eq!(lists("read=0-63")[1].len(), 64);
    }

    #[test]
    fn names_stand_for_maps() {
        assert_eq!(parse("auto"), Ok(Cores::Auto));
        assert_eq!(parse("none").unwrap().map(), CoreMap::ANYWHERE);
        assert_eq!(parse("none"), Ok(Cores::anywhere()));
        assert_eq!(parse("sm8750").unwrap().map(), CoreMap::SM8750);
        assert_eq!(parse("sm8650").unwrap().map(), CoreMap::SM8650);
    }

    #[test]
    fn what_is_no_map_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "write auto"),
            ("sm9999", "write auto"),
            ("6,7", "write auto"),
            ("read=6;", "write auto"),
            ("write=6", "`write` is no role"),
            ("=6", "`` is no role"),
            ("read=6;read=7", "`read` is there twice"),
            ("read=", "`` is no core"),
            ("read=6,,7", "`` is no core"),
            ("read=-1", "`-1` is no core"),
            ("read=+1", "`+1` is no core"),
            ("read=1-", "`1-` is no core"),
            ("read=1-2-3", "`1-2-3` is no core"),
            ("read=65536", "`65536` is no core"),
            ("read=all", "`all` is no core"),
            ("read=\u{661}", "is no core"),
            ("read=7-6", "`7-6` ends before it begins"),
            ("read=6,6", "core 6 is there twice"),
            ("read=2-5,4", "core 4 is there twice"),
            ("read=0-64", "core 64 is there twice, or is one too many"),
            ("read=0-65535", "core 64 is there twice, or is one too many"),
        ] {
            let message = parse(text).unwrap_err();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }
}
