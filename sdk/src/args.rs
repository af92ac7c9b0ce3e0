//! Program arguments: `--name value`, `--name=value` and `--flag`.

use std::{cell::RefCell, collections::BTreeSet, fmt::Display, str::FromStr};

use crate::{
    bail,
    error::{Error, Result},
};

/// Names less like than this are not offered instead of an unknown one.
const SIMILARITY_MIN: f64 = 0.75;

/// The program arguments of a submission.
///
/// An argument that the program did not ask for is an error.
pub struct Args {
    args: Vec<String>,
    asked: RefCell<Asked>,
}

#[derive(Default)]
struct Asked {
    /// Names without dashes.
    names: BTreeSet<String>,
    /// Indexes of arguments that belong to a name.
    taken: BTreeSet<usize>,
}

impl Args {
    /// The arguments as they were given.
    pub fn new(args: Vec<String>) -> Self {
        Self { args, asked: RefCell::default() }
    }

    /// True if `--name` was given; it takes no value.
    pub fn flag(&self, name: &str) -> bool {
        let mut asked = self.asked.borrow_mut();
        asked.names.insert(name.to_owned());
        let found: Vec<_> =
            (0..self.args.len()).filter(|&index| self.args[index].strip_prefix("--") == Some(name)).collect();
        asked.taken.extend(&found);
        !found.is_empty()
    }

    /// The value of `--name`, if it was given.
    ///
    /// # Errors
    /// Returns an error if it was given without a value or twice, or the value is no `V`.
    pub fn get<V>(&self, name: &str) -> Result<Option<V>>
    where
        V: FromStr<Err: Display>,
    {
        let Some(value) = self.value(name)? else {
            return Ok(None);
        };
        match value.parse() {
            Ok(value) => Ok(Some(value)),
            Err(error) => bail!("argument --{name}: \"{value}\": {error}"),
        }
    }

    /// The value of `--name`, or another one if it was not given.
    ///
    /// # Errors
    /// As [`Args::get`].
    pub fn get_or<V>(&self, name: &str, default: V) -> Result<V>
    where
        V: FromStr<Err: Display>,
    {
        Ok(self.get(name)?.unwrap_or(default))
    }

    /// The value of `--name`, as text.
    ///
    /// # Errors
    /// Returns an error if it was not given, or as [`Args::get`].
    pub fn require(&self, name: &str) -> Result<String> {
        match self.value(name)? {
            Some(value) => Ok(value.to_owned()),
            None => bail!("argument --{name} is missing"),
        }
    }

    /// The value of `--name`, one of a few words.
    ///
    /// # Errors
    /// Returns an error that names the nearest word if it is none of them, or if it was not given.
    pub fn one_of<'w>(&self, name: &str, words: &[&'w str]) -> Result<&'w str> {
        let value = self.require(name)?;
        if let Some(word) = words.iter().find(|word| **word == value) {
            return Ok(word);
        }
        let hint = nearest(&value, words.iter().copied());
        let hint = hint.map_or_else(String::new, |word| format!(" did you mean \"{word}\"?"));
        bail!("argument --{name}: unknown \"{value}\";{hint} known are {}", words.join(", "))
    }

    fn value(&self, name: &str) -> Result<Option<&str>> {
        let mut asked = self.asked.borrow_mut();
        asked.names.insert(name.to_owned());
        let mut found = None;
        for (index, arg) in self.args.iter().enumerate() {
            let Some(option) = arg.strip_prefix("--") else {
                continue;
            };
            let value = match option.split_once('=') {
                Some((option, value)) if option == name => value,
                None if option == name => match self.args.get(index + 1).filter(|value| !value.starts_with("--")) {
                    Some(value) => {
                        asked.taken.insert(index + 1);
                        value.as_str()
                    }
                    None => bail!("argument --{name} needs a value"),
                },
                _ => continue,
            };
            asked.taken.insert(index);
            if found.replace(value).is_some() {
                bail!("argument --{name} was given twice");
            }
        }
        Ok(found)
    }

    /// Refuses what the program did not ask for. Called after the program by itself.
    ///
    /// # Errors
    /// Returns an error that names the first such argument and the nearest known one.
    pub fn finish(&self) -> Result<()> {
        match self.unknown() {
            Some(message) => Err(Error::new(message)),
            None => Ok(()),
        }
    }

    /// Adds to a program's error that an argument may have been mistyped.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let asked = self.asked.borrow();
        // Only what resembles a name that was asked for: the program may have stopped before it asked for others.
        let mistyped = self.args.iter().enumerate().find_map(|(index, arg)| {
            let name = option_name(arg)?;
            let known = nearest(name, asked.names.iter().map(String::as_str))?;
            (!asked.taken.contains(&index) && !asked.names.contains(name))
                .then(|| format!("--{name}, did you mean --{known}?"))
        });
        match mistyped {
            Some(mistyped) => Error::new(format!("{error} (unknown argument {mistyped})")),
            None => error,
        }
    }

    fn unknown(&self) -> Option<String> {
        let asked = self.asked.borrow();
        let index = (0..self.args.len()).find(|index| !asked.taken.contains(index))?;
        let arg = &self.args[index];
        let Some(name) = option_name(arg) else {
            return Some(format!("unexpected argument \"{arg}\": arguments are given as --name value"));
        };
        if asked.names.contains(name) {
            return Some(format!("argument --{name} takes no value"));
        }
        Some(match nearest(name, asked.names.iter().map(String::as_str)) {
            Some(known) => format!("unknown argument --{name}: did you mean --{known}?"),
            None if asked.names.is_empty() => format!("unknown argument --{name}: the program takes none"),
            None => {
                let known: Vec<_> = asked.names.iter().map(|name| format!("--{name}")).collect();
                format!("unknown argument --{name}: the program takes {}", known.join(", "))
            }
        })
    }
}

fn option_name(arg: &str) -> Option<&str> {
    let option = arg.strip_prefix("--")?;
    Some(option.split_once('=').map_or(option, |(name, _)| name))
}

fn nearest<'n>(name: &str, known: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    known
        .map(|known| (strsim::jaro_winkler(name, known), known))
        .filter(|(similarity, _)| SIMILARITY_MIN <= *similarity)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::Args;

    fn args(text: &str) -> Args {
        Args::new(text.split_whitespace().map(str::to_owned).collect())
    }

    #[track_caller]
    fn check<V: std::fmt::Debug>(result: crate::Result<V>, message: &str) {
        assert_eq!(result.map_err(|error| error.to_string()).unwrap_err(), message);
    }

    #[test]
    fn values_and_flags_are_found() {
        let args = args("--input a.txt --rate=5 --updates --offset -3");
        assert_eq!(args.require("input").unwrap(), "a.txt");
        assert_eq!(args.get::<f64>("rate").unwrap(), Some(5.0));
        assert_eq!(args.get_or("offset", 0_i64).unwrap(), -3);
        assert_eq!(args.get_or("depth", 7_u8).unwrap(), 7);
        assert!(args.flag("updates"));
        assert!(!args.flag("verbose"));
        args.finish().unwrap();
    }

    #[test]
    fn mistakes_are_named() {
        check(args("").require("input"), "argument --input is missing");
        check(args("--input --rate 5").require("input"), "argument --input needs a value");
        check(args("--input a --input=b").require("input"), "argument --input was given twice");
        check(args("--rate x").get::<u64>("rate"), "argument --rate: \"x\": invalid digit found in string");
        check(
            args("--query q23").one_of("query", &["q0", "q1", "q2", "q22"]),
            "argument --query: unknown \"q23\"; did you mean \"q2\"? known are q0, q1, q2, q22",
        );
    }

    #[test]
    fn what_nobody_asked_for_is_refused() {
        let unknown = |text: &str| {
            let args = args(text);
            let _input: Option<String> = args.get("input").unwrap();
            args.flag("updates");
            args.finish()
        };
        check(unknown("--imput a"), "unknown argument --imput: did you mean --input?");
        check(unknown("--zzz"), "unknown argument --zzz: the program takes --input, --updates");
        check(unknown("a"), "unexpected argument \"a\": arguments are given as --name value");
        check(unknown("--updates=yes"), "argument --updates takes no value");
        let args = args("--imput a");
        let error = args.explain(args.require("input").unwrap_err());
        assert_eq!(error.to_string(), "argument --input is missing (unknown argument --imput, did you mean --input?)");
    }
}
