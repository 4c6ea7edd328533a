//! Where the linker puts functions, in builds for release.
//!
//! A kernel that reads one page of a program maps the fifteen beside it as well. What runs when an agent starts, waits and
//! keeps to what stands is a fifth of the program; scattered over all of it, it keeps nearly all of it in memory. So those
//! functions (`build/used.txt`, made by `tests/bench/used`) come first, side by side. Functions that are equal byte for byte
//! are kept once.
//!
//! Only `lld`, which Rust brings for Linux, is asked for that; where it is not the linker, the program is the same, but larger.
#![allow(clippy::print_stdout, reason = "how Cargo is told")]

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::{env, fs};

fn main() -> std::io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build/used.txt");
    let (profile, out) = (variable("PROFILE"), variable("OUT_DIR"));
    if profile != "release" || variable("CARGO_CFG_TARGET_OS") != "linux" {
        return Ok(());
    }
    let script = Path::new(&out).join("used.ld");
    let names = fs::read_to_string("build/used.txt")?;
    let sections: String = names.lines().filter(|name| !name.starts_with('#')).map(section).collect();
    fs::write(&script, format!("SECTIONS {{ .text.used : {{ *({sections} ) }} }} INSERT BEFORE .text;\n"))?;
    let arguments = ["-Wl,--icf=all".to_owned(), format!("-Wl,-T,{}", script.display())];
    if links(&arguments, &out)? {
        for argument in arguments {
            println!("cargo:rustc-link-arg-bins={argument}");
        }
    }
    Ok(())
}

/// The sections of a function. Symbols end in a hash (`17h...`), which is another with each compiler: the list has none.
fn section(name: &str) -> String {
    let hash = if name.starts_with("_ZN") { "17h" } else { "" };
    format!(" .text.{name}{hash}* .text.unlikely.{name}{hash}*")
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

/// Whether the linker takes these arguments.
fn links(arguments: &[String], out: &str) -> std::io::Result<bool> {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["-", "--crate-name", "probe", "--target", &variable("TARGET"), "--out-dir", out]);
    rustc.args(variable("CARGO_ENCODED_RUSTFLAGS").split('\x1f').filter(|flag| !flag.is_empty()));
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(arguments.iter().map(|argument| format!("-Clink-arg={argument}")));
    let mut probe = rustc.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    if let Some(mut source) = probe.stdin.take() {
        source.write_all(b"fn main() {}")?;
    }
    Ok(probe.wait()?.success())
}
