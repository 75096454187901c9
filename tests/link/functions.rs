//! The functions that `linker/mzcache.h` declares, and which archives have them.

/// Names that begin so are in archives with the feature, the first that fits.
const FEATURES: [(&str, &str); 6] = [
    ("mz_ports_opencl", "opencl"),
    ("mz_ports_", "host"),
    ("mz_linux_", "host"),
    ("mz_model_", "infer"),
    ("mz_restore_generate", "infer"),
    ("mz_restore_sample", "infer"),
];

fn is_in(name: &str, features: &str) -> bool {
    let needed = FEATURES.iter().find(|(start, _)| name.starts_with(start));
    let has = |feature: &str| features.split(',').any(|given| given == feature);
    needed.is_none_or(|(_, feature)| match *feature {
        "host" => features != "bare",
        feature => has(feature),
    })
}

/// All functions of the header that an archive with these features, or one that is "bare", has.
pub fn functions(features: &str) -> Vec<String> {
    let header = include_str!("../../linker/mzcache.h");
    let declared = header.lines().filter(|line| !line.starts_with([' ', '/', '#', '}', 't']));
    let names = declared.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    let names = names.filter(|name| name.starts_with("mz_") && is_in(name, features));
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(names.iter().any(|name| name == "mz_open"), "{names:?}");
    names
}
