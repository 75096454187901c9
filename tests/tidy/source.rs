//! Rust text taken apart into code and comments, so that a rule about code does not trip over a
//! word in a string. Lines and columns stay where they are: what does not belong is blanked.

#[derive(Default)]
pub struct Source {
    /// Without comments and without what is inside of literals.
    pub code: String,
    /// Comments only.
    pub comments: String,
    /// [`Source::code`] without the items that only tests compile.
    pub product: String,
}

impl Source {
    pub fn new(text: &str) -> Self {
        let (code, comments) = split(text);
        let product = without_tests(&code);
        Source { code, comments, product }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut kinds = vec![Kind::Code; chars.len()];
    let mut at = 0;
    while at < chars.len() {
        let (kind, length) = token(&chars[at..], at > 0 && is_word(chars[at - 1]));
        kinds[at..at + length].fill(kind);
        at += length;
    }
    let only = |wanted: Kind| {
        let keep = |(char, kind): (&char, &Kind)| {
            let is_kept = *kind == wanted || *char == '\n';
            if is_kept { *char } else { ' ' }
        };
        chars.iter().zip(&kinds).map(keep).collect()
    };
    (only(Kind::Code), only(Kind::Comment))
}

/// What the text begins with, and how long that is.
fn token(rest: &[char], follows_word: bool) -> (Kind, usize) {
    let starts = |prefix: &str| prefix.chars().eq(rest.iter().copied().take(prefix.len()));
    if starts("//") {
        return (Kind::Comment, rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()));
    }
    if starts("/*") {
        return (Kind::Comment, block_comment(rest));
    }
    if !follows_word {
        let prefix = ["br", "cr", "r", "b", "c", ""].into_iter().find(|prefix| starts(prefix));
        let prefix = prefix.unwrap_or_default();
        let after = &rest[prefix.len()..];
        let hashes = after.iter().take_while(|c| **c == '#').count();
        if prefix.ends_with('r') && after.get(hashes) == Some(&'"') {
            return (Kind::Literal, prefix.len() + raw_string(after, hashes));
        }
        if after.first() == Some(&'"') {
            return (Kind::Literal, prefix.len() + quoted(after, '"'));
        }
    }
    match rest {
        ['"', ..] => (Kind::Literal, quoted(rest, '"')),
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => (Kind::Literal, quoted(rest, '\'')),
        _ => (Kind::Code, 1),
    }
}

fn block_comment(rest: &[char]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => depth += 1,
            ['*', '/', ..] => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_string(rest: &[char], hashes: usize) -> usize {
    let is_end = |window: &[char]| window[0] == '"' && window[1..].iter().all(|c| *c == '#');
    let inside = &rest[hashes + 1..];
    let end = inside.windows(hashes + 1).position(is_end);
    end.map_or(rest.len(), |end| hashes + 1 + end + hashes + 1)
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    rest.len().min(at + 1)
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a word stands on its own, as byte offsets.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = text[..*at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// The line, from 0, of a byte offset.
pub fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count()
}

/// The offset behind the bracket that closes the first one of `text[from..]`.
pub fn end_of_block(text: &str, from: usize, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, char) in text[from..].char_indices() {
        if char == open {
            depth += 1;
        } else if char == close {
            depth -= 1;
            if depth == 0 {
                return from + at + char.len_utf8();
            }
        }
    }
    text.len()
}

const TEST_ATTRIBUTES: [&str; 2] = ["#[cfg(test)]", "#[test]"];

/// Where the attributes of an item begin, one of whose words stands at `at`.
pub fn start_of_item(code: &str, at: usize) -> usize {
    let is_visibility = |c: char| is_word(c) || c.is_whitespace() || c == '(' || c == ')';
    let mut start = at;
    loop {
        let before = code[..start].trim_end_matches(is_visibility);
        match before.rfind("#[").filter(|_| before.ends_with(']')) {
            Some(attribute) => start = attribute,
            None => return before.len(),
        }
    }
}

/// Whether such an item is left to tests.
pub fn is_for_tests(code: &str, at: usize) -> bool {
    let attributes = &code[start_of_item(code, at)..at];
    TEST_ATTRIBUTES.iter().any(|attribute| attributes.contains(attribute))
}

fn without_tests(code: &str) -> String {
    let mut kept = code.to_owned();
    for attribute in TEST_ATTRIBUTES {
        while let Some(start) = kept.find(attribute) {
            let body = start + attribute.len();
            let semicolon = kept[body..].find(';').map(|at| body + at + 1);
            let brace = kept[body..].find('{').map(|at| body + at);
            let end = match (semicolon, brace) {
                (Some(semicolon), Some(brace)) if semicolon < brace => semicolon,
                (Some(semicolon), None) => semicolon,
                (_, Some(brace)) => end_of_block(&kept, brace, '{', '}'),
                (None, None) => kept.len(),
            };
            let blank: String =
                kept[start..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
            kept.replace_range(start..end, &blank);
        }
    }
    kept
}

#[test]
fn literals_and_comments_are_told_from_code() {
    let text = concat!(
        "let a = \"x\\\"// no\"; // yes 'a\n",
        "let b = r#\"/* \"no\" */\"#; /* y /* es */ */ 'c: loop {}\n",
        "let c = ('\"', '\\'', b'x', 'x', &'a str, c\"no\", br\"no\\\", bar\"no\");\n",
    );
    let source = Source::new(text);
    assert!(!source.code.contains("no"), "{}", source.code);
    assert!(!source.code.contains('y') && source.comments.contains("/* y /* es */ */"));
    assert!(source.comments.contains("// yes 'a"));
    for kept in ["'c: loop {}", "&'a str", "bar", "let c ="] {
        assert!(source.code.contains(kept), "{kept} is missing in {}", source.code);
    }
    assert_eq!(source.code.len(), text.len());
}

#[test]
fn test_items_are_not_product() {
    let source = Source::new(
        "a();\n#[cfg(test)]\npub mod heap;\n#[cfg(test)]\nmod tests { b { } }\nc();\n\
        #[test]\nfn d() {}\n",
    );
    let kept: Vec<_> = source.product.split_whitespace().collect();
    assert_eq!(kept, ["a();", "c();"]);
    let code = "#[cfg(test)]\n#[rustfmt::skip]\npub(crate) mod heap;\npub mod buffers;\n";
    assert!(is_for_tests(code, code.find("mod heap").unwrap()));
    assert!(!is_for_tests(code, code.find("mod buffers").unwrap()));
}
