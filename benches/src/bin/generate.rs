//! Writes input files: `generate nexmark|nexmark-dealt|words COUNT PARTS PREFIX` makes the
//! files `PREFIX-0` … with together COUNT events or lines. The files of `nexmark` and `words`
//! follow one another; those of `nexmark-dealt` cover the same time, as files of several
//! servers do: each gets every PARTS-th event, in order.

use std::{env, fs::File, io::BufWriter, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, count, parts, prefix] = arguments.as_slice() else {
        eprintln!("usage: generate nexmark|nexmark-dealt|words COUNT PARTS PREFIX");
        return ExitCode::from(2);
    };
    let (Ok(count), Ok(parts @ 1..)) = (count.parse::<u64>(), parts.parse::<u64>()) else {
        eprintln!("COUNT and PARTS are whole numbers, PARTS at least 1");
        return ExitCode::from(2);
    };
    for part in 0..parts {
        let range = count * part / parts..count * (part + 1) / parts;
        let path = format!("{prefix}-{part}");
        let written = File::create(&path).and_then(|file| {
            let output = BufWriter::with_capacity(1 << 20, file);
            match kind.as_str() {
                "nexmark" => engine_benches::write_nexmark(range, output),
                "nexmark-dealt" => engine_benches::write_every_nexmark(part..count, parts, output),
                "words" => engine_benches::write_words(range.end - range.start, part, output),
                _ => Err(std::io::Error::other(format!(
                    "no input called \"{kind}\": use nexmark, nexmark-dealt or words"
                ))),
            }
        });
        if let Err(error) = written {
            eprintln!("could not write {path}: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
