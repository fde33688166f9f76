//! Parsers of arguments that several subcommands share.

use std::{ffi::OsString, ops::RangeInclusive, time::Duration};

/// Returns the help of an option that names a transport: the names, and the default.
pub(crate) fn transport_help(rest: &str) -> String {
    let names: Vec<&str> = tbccl::Transport::names().collect();
    format!("Transport between processes: {}{rest}", names.join(", "))
}

/// Parses a number of ranks.
pub(crate) fn ranks(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err("a job needs at least one rank".to_owned()),
        Ok(ranks) => Ok(ranks),
        Err(_) => Err("a number of ranks was expected, e.g. 4".to_owned()),
    }
}

/// Parses a range of rank counts: `4`, `1..64`, `1..=64` or `1-64`; both ends are included.
pub(crate) fn rank_range(text: &str) -> Result<RangeInclusive<u32>, String> {
    let ends = ["..=", "..", "-"].into_iter().find_map(|between| text.split_once(between));
    let (first, last) = ends.unwrap_or((text, text));
    let (Ok(first), Ok(last)) = (first.parse(), last.parse()) else {
        return Err("numbers of ranks were expected, e.g. 4 or 1..64".to_owned());
    };
    match (first, last) {
        (0, _) => Err("a job needs at least one rank; begin with 1".to_owned()),
        (first, last) if first > last => Err(format!("the range is empty; did you mean {last}..{first}?")),
        (first, last) => Ok(first..=last),
    }
}

/// Parses a time in seconds, such as `2` or `0.5`.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    number
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "a time in seconds was expected, e.g. 10 or 0.5".to_owned())
}

/// Parses a time of more than 0 seconds.
pub(crate) fn positive_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        time if time.is_zero() => Err("a time of more than 0 was expected, e.g. 0.2".to_owned()),
        time => Ok(time),
    }
}

/// Replaces mpirun's `-np` by `-n` among the options of `tbccl run`; arguments of its program stay.
pub(crate) fn normalize_np(mut args: Vec<OsString>, cli: &clap::Command) -> Vec<OsString> {
    let Some(run) = cli.find_subcommand("run").filter(|_| args.get(1).is_some_and(|arg| arg == "run")) else {
        return args;
    };
    let takes_value = |name: &str| {
        run.get_arguments().any(|arg| {
            let named = match name.strip_prefix("--") {
                Some(long) => arg.get_long() == Some(long),
                None => arg
                    .get_short()
                    .is_some_and(|short| name.strip_prefix('-') == Some(short.to_string().as_str())),
            };
            named && arg.get_action().takes_values()
        })
    };
    let mut index = 2;
    while index < args.len() {
        if args[index] == "-np" {
            args[index] = "-n".into();
        }
        match args[index].to_str() {
            Some("--") => break,
            Some(option) if option.starts_with('-') => index += 1 + usize::from(takes_value(option)),
            _ => break,
        }
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn read(line: &str) -> String {
        let args = line.split(' ').map(OsString::from).collect();
        let args = normalize_np(args, &super::super::Cli::command());
        args.join(" ".as_ref()).into_string().expect("text")
    }

    #[test]
    fn np_is_n_before_the_program_only() {
        assert_eq!(read("tbccl run -np 2 prog -np 3"), "tbccl run -n 2 prog -np 3");
        assert_eq!(
            read("tbccl run -x A=1 --tag-output -np 2 -- prog"),
            "tbccl run -x A=1 --tag-output -n 2 -- prog"
        );
        assert_eq!(read("tbccl run -n 1 -- -np"), "tbccl run -n 1 -- -np");
        assert_eq!(read("tbccl run --timeout 3 prog -np"), "tbccl run --timeout 3 prog -np");
    }

    #[test]
    fn seconds_may_have_fractions_and_a_unit() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("2s"), Ok(Duration::from_secs(2)));
        assert!(seconds("-1").is_err() && seconds("soon").is_err() && seconds("inf").is_err());
    }

    #[test]
    fn ranges_of_ranks_have_both_ends() {
        for text in ["1..64", "1..=64", "1-64"] {
            assert_eq!(rank_range(text), Ok(1..=64), "{text}");
        }
        assert_eq!(rank_range("7"), Ok(7..=7));
        assert!(rank_range("0..3").is_err_and(|why| why.contains("begin with 1")));
        assert!(rank_range("9..3").is_err_and(|why| why.contains("3..9")));
        assert!(rank_range("some").is_err() && rank_range("1..").is_err() && rank_range("-4").is_err());
    }

    #[test]
    fn no_ranks_is_no_job() {
        assert_eq!(ranks("4"), Ok(4));
        assert!(ranks("0").is_err_and(|why| why.contains("at least one")));
        assert!(ranks("-1").is_err());
    }
}
