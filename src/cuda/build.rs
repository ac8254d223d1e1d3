//! Compiles every `kernels/*.cu` into one fat binary and writes the table that puts them into the program. docs/cuda.md
//! explains the environment variables.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fmt::Write;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

/// Files compiled at once: each is a process that takes a core for seconds.
const PROCESSES: usize = 2;
/// Machine code for these; the newest comes as PTX too, which later GPUs translate when they first load it.
const ARCHS: &str = "80,90";
/// Ends the names of files that use what Hopper alone has: tensor maps and products of four warps.
const HOPPER: &str = "_90a";

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    for name in ["NVCC", "CUDA_HOME", "OMNI_CUDA_ARCHS"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    println!("cargo::rerun-if-changed=kernels");
    match compile() {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("\nfeature `cuda`: {told}\n");
            ExitCode::FAILURE
        }
    }
}

fn compile() -> Result<(), String> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set: run this through cargo")?);
    let nvcc = nvcc()?;
    let archs = env::var("OMNI_CUDA_ARCHS").unwrap_or_else(|_| ARCHS.to_owned());
    let (usual, hopper) = (flags(&archs, false)?, flags(&archs, true)?);
    let (sources, headers) = sources().map_err(|error| format!("cannot read kernels/: {error}"))?;
    let queue = Mutex::new(sources.iter().collect::<Vec<_>>());
    let work = || -> Result<(), String> {
        let next = || queue.lock().ok().and_then(|mut queue| queue.pop());
        while let Some(source) = next() {
            let flags = if name(source).ends_with(HOPPER) { &hopper } else { &usual };
            image(&nvcc, flags, source, &headers, &out)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..PROCESSES).map(|_| scope.spawn(work)).collect();
        let done = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err("a worker panicked".into())));
        done.fold(Ok(()), Result::and)
    })?;
    table(&sources, hopper.iter().any(|flag| flag.contains("sm_90a")), &out)
}

/// Makes `OUT_DIR/NAME.fatbin` unless it exists and none of its sources has changed.
fn image(nvcc: &Path, flags: &[String], source: &Path, headers: &[PathBuf], out: &Path) -> Result<(), String> {
    let name = name(source);
    let (fatbin, stamp) = (out.join(format!("{name}.fatbin")), out.join(format!("{name}.stamp")));
    let mut hasher = DefaultHasher::new();
    (nvcc, flags).hash(&mut hasher);
    for file in std::iter::once(source).chain(headers.iter().map(PathBuf::as_path)) {
        let text = fs::read(file).map_err(|error| format!("cannot read {}: {error}", file.display()))?;
        (file, text).hash(&mut hasher);
    }
    let made_of = hasher.finish().to_string();
    if fatbin.is_file() && fs::read_to_string(&stamp).is_ok_and(|before| before == made_of) {
        return Ok(());
    }
    let mut command = Command::new(nvcc);
    command.arg("-fatbin").args(flags).arg("-o").arg(&fatbin).arg(source);
    let output = command.output().map_err(|error| format!("cannot start {}: {error}\n{HELP}", nvcc.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let also = String::from_utf8_lossy(&output.stdout);
        return Err(format!("{} does not compile: {command:?}\n{said}{also}", source.display()));
    }
    for line in said.lines().filter(|line| !line.trim().is_empty()) {
        println!("cargo::warning={name}: {line}");
    }
    fs::write(&stamp, made_of).map_err(|error| format!("cannot write {}: {error}", stamp.display()))
}

/// Writes `OUT_DIR/kernels.rs`, which `images.rs` includes.
fn table(sources: &[PathBuf], hopper: bool, out: &Path) -> Result<(), String> {
    let mut text = format!("pub const HOPPER: bool = {hopper};\npub static IMAGES: &[(&str, &Image)] = &[\n");
    for name in sources.iter().map(|source| name(source)) {
        let fatbin = out.join(format!("{name}.fatbin"));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "    ({name:?}, &Aligned(*include_bytes!({:?}))),", fatbin.display().to_string());
    }
    text.push_str("];\n");
    let path = out.join("kernels.rs");
    fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

const HELP: &str = "install the CUDA toolkit, 13.0 or newer, or make one with `scripts/cuda-toolkit.sh DIR`; then set CUDA_HOME \
to its folder, or NVCC to the compiler. docs/cuda.md explains it.";

/// `$NVCC`, then `$CUDA_HOME/bin/nvcc`, then the first on the PATH.
fn nvcc() -> Result<PathBuf, String> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let given = set("NVCC").map(|path| ("NVCC", path));
    if let Some((name, path)) = given.or_else(|| set("CUDA_HOME").map(|home| ("CUDA_HOME", home.join("bin/nvcc")))) {
        let there = path.is_file() || path.components().count() == 1;
        return if there {
            Ok(path)
        } else {
            Err(format!("{name} points to {}, which is not there\n{HELP}", path.display()))
        };
    }
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders).map(|folder| folder.join("nvcc")).find(|path| path.is_file());
    found.ok_or_else(|| format!("no nvcc: NVCC and CUDA_HOME are not set and it is not on the PATH\n{HELP}"))
}

/// `hopper`: for a file that uses what compute capability 9.0a alone has, in place of 9.0.
fn flags(archs: &str, hopper: bool) -> Result<Vec<String>, String> {
    let archs: Vec<&str> = archs.split(',').map(str::trim).filter(|arch| !arch.is_empty()).collect();
    let number = |arch: &&str| arch.trim_end_matches(['a', 'f']).parse::<u32>().ok();
    if archs.is_empty() || archs.iter().any(|arch| number(arch).is_none()) {
        return Err("OMNI_CUDA_ARCHS must be a list of compute capabilities such as 80,90".to_owned());
    }
    let newest = archs.iter().max_by_key(|arch| number(arch)).copied();
    let mut flags: Vec<String> = ["-O3", "--std=c++17", "-lineinfo"].map(str::to_owned).to_vec();
    for arch in &archs {
        let mut code = format!("sm_{arch}");
        if hopper && *arch == "90" {
            flags.push("-gencode=arch=compute_90a,code=sm_90a".to_owned());
            code.clear();
        }
        if Some(*arch) == newest {
            code = [code, format!("compute_{arch}")].join(",");
        }
        let code = code.trim_start_matches(',');
        if !code.is_empty() {
            flags.push(format!("-gencode=arch=compute_{arch},code=[{code}]"));
        }
    }
    Ok(flags)
}

/// `kernels/*.cu` and `kernels/*.cuh`, each sorted.
fn sources() -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
    let mut files = fs::read_dir("kernels")?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    files.sort();
    let with =
        |ending: &str| files.iter().filter(|file| file.extension().is_some_and(|e| e == ending)).cloned().collect();
    Ok((with("cu"), with("cuh")))
}

fn name(source: &Path) -> String {
    source.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
