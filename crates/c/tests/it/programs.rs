//! Programs in C, compiled with the linker that Rust uses, run against the static and the shared library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder in which Cargo has put the libraries.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    // Next to the test: there Cargo puts libraries that it builds for tests.
    test.parent().expect("target/PROFILE/deps/TEST").to_owned()
}

fn cc() -> Option<String> {
    let cc = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    match Command::new(&cc).arg("--version").output() {
        Ok(output) if output.status.success() => Some(cc),
        _ => {
            assert!(
                std::env::var_os("CI").is_none() && std::env::var_os("FARINDEX_REQUIRE").is_none(),
                "{cc} is missing, and here nothing is skipped"
            );
            eprintln!("SKIPPED: no C compiler: set CC");
            None
        }
    }
}

/// Compiles `tests/c/NAME.c` with these flags; `None` if the compiler cannot.
fn compile(cc: &str, name: &str, variant: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    compile_file(cc, &source, &format!("{name}-{variant}"), flags)
}

fn compile_file(cc: &str, source: &Path, program: &str, flags: &[&str]) -> Result<PathBuf, String> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(program);
    let output = Command::new(cc)
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g", "-pthread"])
        .arg("-I")
        .arg(include)
        .arg(source)
        .arg("-o")
        .arg(&program)
        .args(flags)
        .output()
        .expect("the compiler starts");
    if output.status.success() { Ok(program) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn run(program: &Path, arguments: &[&str]) {
    let output = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", built())
        // Rust's allocations of threads that never end are still reachable; anything else that is left is a leak.
        .env("ASAN_OPTIONS", "detect_leaks=1:abort_on_error=0")
        .output()
        .expect("the program starts");
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {out}{errors}", output.status);
    assert!(out.ends_with("ok\n"), "{out}{errors}");
}

fn libraries() -> (String, String) {
    let folder = built();
    let (fixed, shared) = (folder.join("libfarindex_c.a"), folder.join("libfarindex_c.so"));
    assert!(fixed.is_file() && shared.is_file(), "{} and {} are there", fixed.display(), shared.display());
    (fixed.display().to_string(), folder.display().to_string())
}

/// A pool's file, removed at the end.
struct File(String);

impl File {
    fn new(name: &str) -> Self {
        File(format!("/dev/shm/farindex-c-{name}-{}", std::process::id()))
    }
    fn url(&self) -> String {
        format!("shm:{}", self.0)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _: std::io::Result<()> = std::fs::remove_file(&self.0);
    }
}

const STATIC: [&str; 3] = ["-lm", "-ldl", "-lpthread"];

#[test]
fn every_function_works_with_address_sanitizer() {
    let Some(cc) = cc() else { return };
    let (library, _) = libraries();
    let flags = [&[library.as_str()][..], &STATIC, &["-fsanitize=address,undefined"]].concat();
    let program = compile(&cc, "all", "asan", &flags).or_else(|error| {
        if !["sanitize", "asan", "ubsan"].iter().any(|sign| error.contains(sign)) {
            return Err(error);
        }
        eprintln!("without address sanitizer, which this compiler lacks: {error}");
        compile(&cc, "all", "plain", &[&[library.as_str()][..], &STATIC].concat())
    });
    let file = File::new("all");
    run(&program.expect("the program compiles"), &[&file.url()]);
}

#[test]
fn the_shared_library_works() {
    let Some(cc) = cc() else { return };
    let (_, folder) = libraries();
    let program = compile(&cc, "all", "shared", &["-L", &folder, "-lfarindex_c"]).expect("the program compiles");
    let file = File::new("shared");
    run(&program, &[&file.url()]);
}

#[test]
fn the_program_of_the_documentation_works() {
    let Some(cc) = cc() else { return };
    let (library, _) = libraries();
    let page = include_str!("../../../../docs/c.md");
    let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a program in C");
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join("documentation.c");
    std::fs::write(&source, program).expect("the program can be written");
    let program = compile_file(&cc, &source, "documentation", &[&[library.as_str()][..], &STATIC].concat());
    let output = Command::new(program.expect("it compiles")).output().expect("it starts");
    assert!(output.status.success() && output.stdout == b"memory\n", "{output:?}");
}

#[test]
fn the_header_is_c_plus_plus_too() {
    let Some(cc) = cc() else { return };
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/farindex.h");
    let check = Command::new(cc).args(["-x", "c++", "-fsyntax-only", "-Wall", "-Werror"]).arg(header).output();
    let check = check.expect("the compiler starts");
    let errors = String::from_utf8_lossy(&check.stderr);
    // A compiler of C alone has no front end for C++.
    assert!(check.status.success() || errors.contains("cc1plus"), "{errors}");
}

/// A program in C is killed in the middle of its writes; another client finds everything that it had acknowledged.
#[test]
fn a_killed_program_loses_nothing() {
    use std::io::{BufRead, BufReader};
    let Some(cc) = cc() else { return };
    let (library, _) = libraries();
    let program = compile(&cc, "writer", "static", &[&[library.as_str()][..], &STATIC].concat());
    let file = File::new("killed");
    let lease = std::time::Duration::from_secs(1);
    let pool = farindex::Pool::builder().node_bytes(64 << 20).lease(lease).create(file.url().as_str()).expect("a pool");
    let session = pool.session().expect("a session");
    let index = session.index("written").create().expect("an index");
    let mut writer = Command::new(program.expect("the program compiles"))
        .arg(file.url())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut acknowledged = 0;
    let mut lines = BufReader::new(writer.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    for line in lines.by_ref().take(1000) {
        acknowledged = line.parse().expect("a number");
    }
    writer.kill().expect("it is killed");
    writer.wait().expect("it has ended");
    // The last line may be cut off.
    let rest: Vec<String> = lines.collect();
    for line in rest.iter().take(rest.len().saturating_sub(1)) {
        acknowledged = line.parse().expect("a number");
    }
    assert!(acknowledged >= 999, "{acknowledged}");
    for number in 0..=acknowledged {
        let value: u64 = number;
        assert_eq!(index.get(value.to_ne_bytes()).expect("a look-up").as_deref(), Some(&b"written"[..]), "{number}");
        index.upsert(value.to_ne_bytes(), "over").expect("the key can be written");
    }
}
