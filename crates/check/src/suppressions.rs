//! Findings that are not told, as a file lists them.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

use crate::finding::{Finding, Rule, Site};

/// Which findings are not told: a line each, `RULE:PATTERN`, in the manner of the suppressions of
/// LeakSanitizer. The pattern is looked for in each frame and in what the finding says; `*` in it
/// stands for any characters. `*` as the rule stands for all rules. Empty lines, and those that
/// begin with `#`, say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions(Vec<(Option<Rule>, String)>);

/// A line that is no suppression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

impl Display for BadLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl Error for BadLine {}

impl Suppressions {
    /// The suppressions of a file's text.
    ///
    /// # Errors
    ///
    /// The first line that is none.
    pub fn parse(text: &str) -> Result<Self, BadLine> {
        let mut all = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = |why| BadLine { line: n + 1, why };
            let (rule, pattern) =
                line.split_once(':').ok_or_else(|| bad("RULE:PATTERN is expected".to_owned()))?;
            let rule = match rule {
                "*" => None,
                name => Some(Rule::of(name).ok_or_else(|| bad(format!("'{name}' is no rule")))?),
            };
            all.push((rule, pattern.to_owned()));
        }
        Ok(Self(all))
    }

    /// Whether a finding is not told.
    pub fn has<S: Site>(&self, finding: &Finding<S>) -> bool {
        let mut of_rule = self.0.iter().filter(|(rule, _)| rule.is_none_or(|rule| rule == finding.rule));
        of_rule.any(|(_, pattern)| {
            let in_calls = || finding.calls.iter().any(|(_, site)| any_line(&site.to_string(), pattern));
            any_line(&finding.what, pattern) || in_calls()
        })
    }
}

fn any_line(text: &str, pattern: &str) -> bool {
    text.lines().any(|line| is_in(line, pattern))
}

/// Whether the parts of a pattern between its `*` are in a text, in their order.
fn is_in(text: &str, pattern: &str) -> bool {
    let mut rest = text;
    pattern.split('*').all(|part| match rest.split_once(part) {
        Some((_, behind)) => {
            rest = behind;
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::is_in;

    #[test]
    fn the_parts_of_a_pattern_are_found_in_their_order() {
        let line = "post (client.c:95)";
        for pattern in ["", "*", "post", "client.c", "client.c:95", "post*95", "p*t*client*)"] {
            assert!(is_in(line, pattern), "{pattern}");
        }
        for pattern in ["server.c", "95*post", "client.c:96"] {
            assert!(!is_in(line, pattern), "{pattern}");
        }
    }
}
