//! On this machine.

use crate::functions::functions;
use crate::install::{Kind, SHARED, USUAL, installed};
use crate::oracle::{COUNT, Oracle, answer, oracle};
use crate::tools::{Folder, ROOT, command, run};
use std::fs;
use std::path::Path;
use std::process::Command;

const STRICT: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Werror", "-pedantic"];

/// Whether a tool is there; under `MZ_CI=1` it must be.
fn has(tool: &str) -> bool {
    let is_there = Command::new(tool).arg("--version").output().is_ok();
    let is_ci = std::env::var("MZ_CI").is_ok_and(|value| value == "1");
    assert!(is_there || !is_ci, "{tool} is missing");
    if !is_there {
        eprintln!("not checked: {tool} is missing");
    }
    is_there
}

/// A folder with nothing in it but copies of these examples.
fn folder(sources: &[&str]) -> Folder {
    let folder = Folder::new();
    for name in sources {
        fs::copy(format!("{ROOT}/tests/c/{name}"), folder.0.join(name)).unwrap();
    }
    folder
}

/// What `pkg-config` says of an installed library.
fn pkg_config(prefix: &Path) -> Vec<String> {
    let mut ask = command("pkg-config", &["--cflags", "--libs", "mzcache"], Path::new(ROOT));
    ask.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    run(ask).split_whitespace().map(str::to_owned).collect()
}

/// Compiles one of the examples by the flags of `pkg-config`; a command that runs it.
fn build(folder: &Folder, compiler: &str, source: &str, more: &[&str]) -> Command {
    build_with(USUAL, folder, compiler, source, more)
}

/// The same with some kind of library.
fn build_with(kind: Kind, folder: &Folder, compiler: &str, source: &str, more: &[&str]) -> Command {
    let flags = pkg_config(&installed(kind));
    let standard = if source.ends_with("pp") { "-std=c++17" } else { "-std=c11" };
    let program = folder.path(&format!("{compiler}-{source}.out"));
    let mut arguments = vec![standard];
    arguments.extend(STRICT);
    arguments.extend([source, "-o", &program, "-Wl,--gc-sections"]);
    arguments.extend(more);
    arguments.extend(flags.iter().map(String::as_str));
    run(command(compiler, &arguments, &folder.0));
    command(&program, &[], &folder.0)
}

fn check_engine(mut engine: Command) {
    engine.arg(".");
    let printed = run(engine);
    assert!(printed.starts_with("ok ") && printed.split_whitespace().count() == 13, "{printed}");
}

fn check_model(mut model: Command, is_cpp: bool) {
    let Oracle { model: path, prompt, greedy } = oracle("llama");
    model.args([&path, "swap", COUNT]);
    let expected = match is_cpp {
        true => format!("{greedy} chosen\n"),
        false => format!("{greedy}\n{greedy}\n"),
    };
    assert_eq!(answer(model, &prompt), expected);
}

/// The library's own buffers under kernels of the program, in every mode that the device has; PoCL
/// has them all.
fn check_accelerator(compiler: &str) {
    let folder = folder(&["accelerator.c", "hosted.h", "known.h"]);
    let loader = ["-l:libOpenCL.so.1"];
    if !can_link(compiler, &loader) {
        return;
    }
    for sharing in ["1", "2", "3"] {
        let mut accelerator = build(&folder, compiler, "accelerator.c", &loader);
        accelerator.args([".", sharing, "libOpenCL.so.1", "portable computing"]);
        assert_eq!(run(accelerator), format!("ok {sharing}\n"));
    }
}

/// Whether a program can be linked so; under `MZ_CI=1` it must.
fn can_link(compiler: &str, flags: &[&str]) -> bool {
    let folder = Folder::new();
    fs::write(folder.0.join("empty.c"), "int main(void) { return 0; }\n").unwrap();
    let output = command(compiler, &[&["empty.c"], flags].concat(), &folder.0).output().unwrap();
    let is_ci = std::env::var("MZ_CI").is_ok_and(|value| value == "1");
    assert!(output.status.success() || !is_ci, "{flags:?}: {output:?}");
    if !output.status.success() {
        eprintln!("not checked: {flags:?} cannot be linked");
    }
    output.status.success()
}

#[test]
fn gcc_builds_an_engine_on_an_accelerator() {
    check_accelerator("gcc");
}

#[test]
fn clang_builds_an_engine_on_an_accelerator() {
    if has("clang") {
        check_accelerator("clang");
    }
}

#[test]
fn gcc_builds_the_examples_by_pkg_config() {
    let folder = folder(&["engine.c", "model.c", "model.cpp"]);
    check_engine(build(&folder, "gcc", "engine.c", &[]));
    check_model(build(&folder, "gcc", "model.c", &[]), false);
    check_model(build(&folder, "g++", "model.cpp", &[]), true);
}

#[test]
fn clang_builds_the_examples_by_pkg_config() {
    if !has("clang") {
        return;
    }
    let folder = folder(&["engine.c", "model.c", "model.cpp"]);
    check_engine(build(&folder, "clang", "engine.c", &[]));
    check_model(build(&folder, "clang", "model.c", &[]), false);
    check_model(build(&folder, "clang++", "model.cpp", &[]), true);
}

/// The C side instrumented, its heap and so the library's memory watched.
#[test]
fn examples_run_under_sanitizers() {
    let folder = folder(&["engine.c", "model.c", "model.cpp", "hostile.c"]);
    let sanitizers = ["-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    check_engine(build(&folder, "gcc", "engine.c", &sanitizers));
    check_model(build(&folder, "gcc", "model.c", &sanitizers), false);
    check_model(build(&folder, "g++", "model.cpp", &sanitizers), true);
    let mut hostile = build(&folder, "gcc", "hostile.c", &sanitizers);
    hostile.args([&oracle("llama").model, "swap"]);
    assert_eq!(run(hostile), "ok\n");
}

/// The program that the README shows.
#[test]
fn the_readme_program_answers() {
    let readme = fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let folder = Folder::new();
    fs::write(folder.0.join("readme.c"), program).unwrap();
    let path = oracle("llama").model;
    std::os::unix::fs::symlink(path, folder.0.join("model.gguf")).unwrap();
    let printed = run(build(&folder, "gcc", "readme.c", &[]));
    assert_eq!(printed.lines().filter(|line| line.parse::<u32>().is_ok()).count(), 16);
}

/// A shared object of one's own, by the export map: the header's functions and nothing else.
#[test]
fn a_shared_object_exports_the_header() {
    let (prefix, folder) = (installed(USUAL), Folder::new());
    let (library, object) = (prefix.join("lib"), folder.path("libmzcache.so"));
    let map = format!("-Wl,--version-script={}/mzcache.map", library.display());
    let archive = format!("{}/libmzcache.a", library.display());
    let mut functions = functions("infer,opencl");
    let roots: Vec<_> = functions.iter().map(|name| format!("-Wl,-u,{name}")).collect();
    let mut arguments = vec!["-shared", "-o", &object, "-Wl,--gc-sections", &map];
    arguments.extend(roots.iter().map(String::as_str));
    arguments.extend([&*archive, "-lpthread", "-ldl", "-lm"]);
    run(command("gcc", &arguments, &folder.0));
    functions.sort();
    assert_eq!(exported(&object), functions);
    let segments = run(command("readelf", &["-lW", &object], &folder.0));
    let stack = segments.lines().find(|line| line.contains("GNU_STACK")).unwrap();
    assert!(stack.contains(" RW ") && !stack.contains("RWE"), "{stack}");
}

/// What a shared object exports.
fn exported(object: &str) -> Vec<String> {
    let symbols = run(command("nm", &["-D", "--defined-only", object], Path::new(ROOT)));
    let names = symbols.lines().filter_map(|line| line.rsplit(' ').next());
    let names = names.filter_map(|name| name.split('@').next()).filter(|name| *name != "MZCACHE_0");
    let mut exported: Vec<_> = names.map(str::to_owned).collect();
    exported.sort();
    exported
}

/// The one that `linker/install` builds: under programs that ask for it by its name.
#[test]
fn the_built_shared_object_runs_the_examples() {
    let (prefix, folder) = (installed(SHARED), folder(&["engine.c", "model.c"]));
    let object = prefix.join("lib/libmzcache.so");
    let mut functions = functions("infer,opencl");
    functions.sort();
    assert_eq!(exported(object.to_str().unwrap()), functions);
    let mut engine = build_with(SHARED, &folder, "gcc", "engine.c", &["-pthread", "-lm"]);
    let mut model = build_with(SHARED, &folder, "gcc", "model.c", &[]);
    for program in [&mut engine, &mut model] {
        program.env("LD_LIBRARY_PATH", prefix.join("lib"));
    }
    let needed = run(command("readelf", &["-d", &folder.path("gcc-engine.c.out")], &folder.0));
    assert!(needed.contains("[libmzcache.so.0.1]"), "{needed}");
    check_engine(engine);
    check_model(model, false);
}

const LISTS: &str = r"cmake_minimum_required(VERSION 3.16)
project(service C CXX)
set(CMAKE_C_STANDARD 11)
set(CMAKE_CXX_STANDARD 17)
find_package(mzcache 0.1 CONFIG REQUIRED)
add_executable(engine engine.c)
target_link_libraries(engine PRIVATE mzcache::mzcache m pthread)
add_executable(model model.cpp)
target_link_libraries(model PRIVATE mzcache::mzcache)
";

#[test]
fn cmake_builds_the_examples() {
    if !has("cmake") {
        return;
    }
    for (kind, compilers) in
        [(USUAL, ["gcc", "g++"]), (USUAL, ["clang", "clang++"]), (SHARED, ["gcc", "g++"])]
    {
        if !has(compilers[0]) {
            continue;
        }
        let prefix = installed(kind);
        let folder = folder(&["engine.c", "model.cpp"]);
        fs::write(folder.0.join("CMakeLists.txt"), LISTS).unwrap();
        let path = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
        let mut configure = command("cmake", &["-S", ".", "-B", "built", &path], &folder.0);
        configure.envs([("CC", compilers[0]), ("CXX", compilers[1])]);
        run(configure);
        run(command("cmake", &["--build", "built"], &folder.0));
        check_engine(command(&folder.path("built/engine"), &[], &folder.0));
        check_model(command(&folder.path("built/model"), &[], &folder.0), true);
    }
}

#[test]
fn an_absent_archive_is_named() {
    if !has("cmake") {
        return;
    }
    let folder = folder(&["engine.c", "model.cpp"]);
    let cmake = folder.0.join("prefix/lib/cmake/mzcache");
    fs::create_dir_all(&cmake).unwrap();
    fs::copy(format!("{ROOT}/linker/mzcache-config.cmake"), cmake.join("mzcache-config.cmake"))
        .unwrap();
    let lists = LISTS.replace("mzcache 0.1", "mzcache");
    fs::write(folder.0.join("CMakeLists.txt"), lists).unwrap();
    let path = format!("-DCMAKE_PREFIX_PATH={}", folder.path("prefix"));
    let output = command("cmake", &["-S", ".", "-B", "built", &path], &folder.0).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("libmzcache.a"), "{output:?}");
}
