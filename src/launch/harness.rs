//! Feeds both ends of the connection between launcher and agent with arbitrary bytes, for tests and the fuzz
//! target `launcher_frames` under `fuzz/`.

use super::{
    frame::{Decoder, FromAgent, ToAgent, encode},
    lines::Lines,
};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt::Debug;

/// Decodes the bytes in pieces, as the launcher and as an agent; `bytes[0]` determines the pieces.
///
/// # Panics
/// If a frame differs after encoding and decoding, or depends on the pieces.
pub fn feed(bytes: &[u8]) {
    let Some((cut, bytes)) = bytes.split_first() else { return };
    let piece_bytes = usize::from(*cut).max(1);
    let to_agent = decode::<ToAgent>(bytes, piece_bytes, false);
    assert_eq!(to_agent, decode(bytes, bytes.len().max(1), false), "frames depend on the pieces");
    for is_greeted in [false, true] {
        let from_agent = decode::<FromAgent>(bytes, piece_bytes, !is_greeted);
        for (frame, tail) in from_agent {
            use_frame(&frame, &tail);
        }
    }
}

/// Returns the frames up to the first invalid one.
fn decode<F>(bytes: &[u8], piece_bytes: usize, skips_preamble: bool) -> Vec<(F, Vec<u8>)>
where
    F: DeserializeOwned + Serialize + Debug + PartialEq,
{
    let (mut decoder, mut frames) = (Decoder::default(), Vec::new());
    let mut is_greeted = !skips_preamble;
    for piece in bytes.chunks(piece_bytes) {
        decoder.push(piece);
        is_greeted = is_greeted || decoder.skip_to_greeting();
        if !is_greeted {
            continue;
        }
        loop {
            match decoder.next::<F>() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(why) => {
                    assert!(!why.is_empty());
                    return frames;
                }
            }
        }
    }
    for (frame, tail) in &frames {
        let mut decoder = Decoder::default();
        decoder.push(&encode(frame, tail));
        let again = decoder.next::<F>().expect("a frame");
        assert!(again.is_some_and(|(other, bytes)| other == *frame && bytes == *tail), "{frame:?}");
    }
    frames
}

/// Uses the content of a frame as the launcher does.
fn use_frame(frame: &FromAgent, tail: &[u8]) {
    match frame {
        FromAgent::Ended { how, .. } => {
            assert!(!how.to_string().is_empty());
            assert_eq!(how.exit_code() == 0, how.is_success());
        }
        FromAgent::Output { .. } => {
            let (mut lines, mut out) = (Lines::new(b"[0] ".to_vec(), false), Vec::new());
            lines.push(tail, &mut out);
            lines.finish(&mut out);
            assert!(out.len() >= tail.len(), "output was lost");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::{FromAgent, ToAgent, decode, feed};

    #[test]
    fn both_ends_understand_their_samples_to_the_last_frame() {
        let sample = |name: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/launcher_frames");
            std::fs::read(format!("{folder}/{name}")).expect("a sample")
        };
        assert_eq!(decode::<ToAgent>(&sample("a_launcher")[1..], 1 << 16, false).len(), 5);
        assert!(decode::<FromAgent>(&sample("an_agent")[1..], 1 << 16, true).len() > 3);
    }

    #[test]
    fn inputs_that_fuzzing_has_found_are_replayed() {
        support::replay("launcher_frames", feed);
    }
}
