//! The literal texts of a Jinja chat template: what stands outside its tags, and the strings inside them. The template is
//! not run: every branch counts, whatever a conversation would take.

/// The texts in the order of the template, empty ones left out.
pub(super) fn literals(template: &str) -> Vec<String> {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|open| rest.find(open)).min() {
        push(&mut literals, &rest[..at]);
        let tag = &rest[at..];
        rest = if tag.starts_with("{#") {
            tag.split_once("#}").map_or("", |(_, after)| after)
        } else {
            strings(&tag[2..], &mut literals)
        };
    }
    push(&mut literals, rest);
    literals
}

/// Collects the string literals of a tag; returns what follows it. A `}}` inside a string does not end the tag.
fn strings<'a>(tag: &'a str, literals: &mut Vec<String>) -> &'a str {
    let mut at = 0;
    while let Some(c) = tag[at..].chars().next() {
        let here = &tag[at..];
        if here.starts_with("}}") || here.starts_with("%}") {
            return &here[2..];
        }
        at += if c == '\'' || c == '"' { string(here, c, literals) } else { c.len_utf8() };
    }
    ""
}

/// Reads one quoted string; returns its length with the quotes.
fn string(quoted: &str, quote: char, literals: &mut Vec<String>) -> usize {
    let mut text = String::new();
    let mut characters = quoted.char_indices().skip(1);
    while let Some((at, c)) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some((_, 'n')) => text.push('\n'),
                Some((_, 't')) => text.push('\t'),
                Some((_, 'r')) => text.push('\r'),
                Some((_, escaped)) => text.push(escaped),
                None => break,
            },
            c if c == quote => {
                push(literals, &text);
                return at + 1;
            }
            c => text.push(c),
        }
    }
    push(literals, &text);
    quoted.len()
}

fn push(literals: &mut Vec<String>, text: &str) {
    if !text.is_empty() {
        literals.push(text.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_strings_are_found_and_code_is_not() {
        let template = "{%- if role == \"user\" %}{{- '<|im_start|>' + role + '\\n' }}Hi {# 'no' #}there{% endif %}\n";
        assert_eq!(literals(template), ["user", "<|im_start|>", "\n", "Hi ", "there", "\n"]);
    }

    #[test]
    fn quotes_and_braces_inside_strings_do_not_end_them() {
        assert_eq!(literals(r#"{{ "it's }} \"so\"" }}x"#), ["it's }} \"so\"", "x"]);
        assert_eq!(literals("{{ '中文' }}"), ["中文"]);
    }

    #[test]
    fn unfinished_tags_end_with_the_template() {
        assert_eq!(literals("a{{ 'b"), ["a", "b"]);
        assert_eq!(literals("a{{ '\\"), ["a"]);
        assert_eq!(literals("a{# b"), ["a"]);
        assert!(literals("").is_empty());
    }
}
