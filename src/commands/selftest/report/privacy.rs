//! Removal of what a report must not contain: names of users and hosts, addresses, and secrets.
//!
//! Link-local and loopback addresses stay, since they mean nothing elsewhere.

use crate::commands::selftest::check::Check;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Shortest text that is replaced wherever it stands; shorter ones would match parts of messages.
const MIN_NAME: usize = 3;

/// The words to replace.
#[derive(Clone, Debug, Default)]
pub(in crate::commands::selftest) struct Privacy {
    /// Texts that are replaced wherever they stand, with their replacements.
    texts: Vec<(String, &'static str)>,
    /// Words that are replaced where they stand alone, with their replacements.
    words: Vec<(String, &'static str)>,
}

impl Privacy {
    /// Reads the user, the host and the secret from the environment; `hosts` are other names to remove.
    pub(in crate::commands::selftest) fn new(hosts: &[String]) -> Privacy {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| value.len() >= MIN_NAME);
        let mut privacy = Privacy::default();
        for (name, replacement) in
            [("TBCCL_SECRET", "<secret>"), ("TBCCL_SECRET_FILE", "<secret file>"), ("HOME", "~")]
        {
            privacy.texts.extend(variable(name).map(|value| (value, replacement)));
        }
        let users = ["USER", "LOGNAME", "SUDO_USER"].into_iter().filter_map(variable);
        privacy.words.extend(users.filter(|user| user != "root").map(|user| (user, "<user>")));
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        for host in hosts.iter().chain([&own]) {
            let short = host.split('.').next().unwrap_or_default();
            privacy.texts.push((host.clone(), "<host>"));
            privacy.words.push((short.to_owned(), "<host>"));
        }
        privacy.texts.retain(|(text, _)| text.len() >= MIN_NAME);
        privacy.texts.retain(|(text, _)| text != "localhost");
        privacy.words.retain(|(word, _)| word.len() > 1 && word != "localhost");
        privacy
    }

    /// Returns a check without private words.
    pub(in crate::commands::selftest) fn clean_check(&self, check: Check) -> Check {
        Check {
            text: self.clean(&check.text),
            remedy: self.clean(&check.remedy),
            details: check.details.iter().map(|line| self.clean(line)).collect(),
            ..check
        }
    }

    /// Returns a text without private words.
    pub(in crate::commands::selftest) fn clean(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (private, replacement) in &self.texts {
            text = text.replace(private, replacement);
        }
        let is_part = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '_' | '-' | '%');
        let mut clean = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some(first) = rest.chars().next() {
            let end = if is_part(first) {
                rest.find(|c| !is_part(c)).unwrap_or(rest.len())
            } else {
                first.len_utf8()
            };
            clean += &self.clean_word(&rest[..end]);
            rest = &rest[end..];
        }
        clean
    }

    fn clean_word(&self, word: &str) -> String {
        let bare = word.trim_end_matches([':', '.', ',']);
        if let Some((_, replacement)) = self.words.iter().find(|(private, _)| private == bare) {
            return word.replacen(bare, replacement, 1);
        }
        // An address may be followed by a port.
        let (address, port) = match bare.rsplit_once(':') {
            Some((address, port)) if address.parse::<Ipv4Addr>().is_ok() => (address, format!(":{port}")),
            _ => (bare, String::new()),
        };
        if is_private(address) { format!("<address>{port}{}", &word[bare.len()..]) } else { word.to_owned() }
    }
}

/// Whether a word is an address that may identify a network.
fn is_private(word: &str) -> bool {
    let is_private_v4 = |ip: Ipv4Addr| !ip.is_loopback() && !ip.is_link_local() && !ip.is_unspecified();
    let address = word.split('%').next().unwrap_or_default();
    match (address.parse::<Ipv4Addr>(), address.parse::<Ipv6Addr>()) {
        (Ok(ip), _) => is_private_v4(ip),
        (_, Ok(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => is_private_v4(ip),
            None => !ip.is_loopback() && !ip.is_unicast_link_local() && !ip.is_unspecified(),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_addresses_and_secrets_are_replaced_and_link_local_addresses_stay() {
        let privacy = Privacy {
            texts: vec![("/home/ada".into(), "~"), ("abc123".into(), "<secret>")],
            words: vec![("ada".into(), "<user>"), ("mac7".into(), "<host>")],
        };
        let clean = |text: &str| privacy.clean(text);
        assert_eq!(clean("/home/ada/lib.so of ada: abc123"), "~/lib.so of <user>: <secret>");
        assert_eq!(clean("adaptive, on mac7, mac70"), "adaptive, on <host>, mac70");
        assert_eq!(clean("10.1.2.3:4567 and 192.168.0.7."), "<address>:4567 and <address>.");
        let local = "[1] ::ffff:169.254.1.1, fe80::1, 127.0.0.1:80, 0.32.4, 12:30:01, all_reduce";
        assert_eq!(clean(local), local);
        assert_eq!(clean("(::ffff:10.0.0.1) fd00::7, fe80::1%en2"), "(<address>) <address>, fe80::1%en2");
    }
}
