//! One self-contained HTML page of a report: its Markdown and its pictures, nothing fetched, no script.
//!
//! It renders the Markdown that this tool itself writes (headings, paragraphs, tables, fenced code, lists, emphasis,
//! code spans, pictures), not Markdown at large; what it does not know stays readable text.

use std::{collections::BTreeMap, fmt::Write as _};

const STYLE: &str = "\
    :root{color-scheme:light dark;--ground:#fff;--ink:#1c2024;--grid:#d9dde1;--code:#f3f5f7}\
    @media(prefers-color-scheme:dark){:root{--ground:#14181c;--ink:#e8ebee;--grid:#343a41;--code:#1f252b}}\
    body{margin:2rem auto;max-width:60rem;padding:0 1rem;background:var(--ground);color:var(--ink);\
    font:15px/1.5 system-ui,sans-serif}\
    table{border-collapse:collapse;display:block;overflow-x:auto}th,td{border-bottom:1px solid var(--grid);\
    padding:.25rem .6rem;text-align:left}.right{text-align:right;font-variant-numeric:tabular-nums}\
    code,pre{font-family:ui-monospace,monospace;font-size:13px;background:var(--code);border-radius:3px}\
    code{padding:.1em .3em}pre{padding:.8rem;overflow-x:auto}pre code{padding:0}svg{max-width:100%;height:auto}";

/// The page of `markdown`; `![TEXT](NAME)` becomes the picture of that name where there is one.
pub fn html(title: &str, markdown: &str, pictures: &BTreeMap<String, String>) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n",
        escape(title)
    );
    let lines: Vec<&str> = markdown.lines().collect();
    let mut at = 0;
    while at < lines.len() {
        at += block(&lines[at..], pictures, &mut page);
    }
    page.push_str("</body>\n</html>\n");
    page
}

/// Writes the block that begins at the first line; returns how many lines it took.
fn block(lines: &[&str], pictures: &BTreeMap<String, String>, page: &mut String) -> usize {
    let first = lines[0];
    let run = |is_in: fn(&str) -> bool| lines.iter().take_while(|line| is_in(line)).count();
    if first.trim().is_empty() {
        return 1;
    }
    if first.starts_with("```") {
        let n_code = lines[1..].iter().take_while(|line| !line.starts_with("```")).count();
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&lines[1..=n_code].join("\n")));
        return n_code + 2;
    }
    let level = first.bytes().take_while(|byte| *byte == b'#').count();
    if (1..=6).contains(&level) && first[level..].starts_with(' ') {
        let _ = writeln!(page, "<h{level}>{}</h{level}>", inline(first[level..].trim()));
        return 1;
    }
    if let Some(svg) = picture(first).and_then(|name| pictures.get(name)) {
        let _ = writeln!(page, "<figure>{svg}</figure>");
        return 1;
    }
    if first.starts_with('|') {
        let n_rows = run(|line| line.starts_with('|'));
        table(&lines[..n_rows], page);
        return n_rows;
    }
    if first.starts_with("- ") {
        let n_items = run(|line| line.starts_with("- "));
        let items: String = lines[..n_items].iter().map(|line| format!("<li>{}</li>", inline(&line[2..]))).collect();
        let _ = writeln!(page, "<ul>{items}</ul>");
        return n_items;
    }
    let is_text = |line: &str| !line.trim().is_empty() && !line.starts_with(['|', '#', '`']) && !line.starts_with("- ");
    let n_lines = run(is_text).max(1);
    let _ = writeln!(page, "<p>{}</p>", inline(&lines[..n_lines].join(" ")));
    n_lines
}

/// The file name of a line that is one picture.
fn picture(line: &str) -> Option<&str> {
    let (_, rest) = line.trim().strip_prefix("![")?.split_once("](")?;
    rest.strip_suffix(')')
}

fn table(lines: &[&str], page: &mut String) {
    let rule = lines.get(1).map_or(Vec::new(), |line| cells(line));
    let is_rule = |cell: &String| !cell.is_empty() && cell.bytes().all(|byte| matches!(byte, b'-' | b':'));
    let has_rule = !rule.is_empty() && rule.iter().all(is_rule);
    page.push_str("<table>\n");
    for (row, line) in lines.iter().enumerate() {
        if row == 1 && has_rule {
            continue;
        }
        let tag = if row == 0 && has_rule { "th" } else { "td" };
        page.push_str("<tr>");
        for (column, cell) in cells(line).iter().enumerate() {
            let is_right = has_rule && rule.get(column).is_some_and(|mark| mark.ends_with(':'));
            let class = if is_right { " class=\"right\"" } else { "" };
            let _ = write!(page, "<{tag}{class}>{}</{tag}>", inline(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</table>\n");
}

/// The cells of a table's line; `\|` is a bar inside one.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|');
    let inner = inner.strip_suffix('|').unwrap_or(inner);
    let marked = inner.replace("\\|", "\u{0}");
    marked.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect()
}

/// Code spans, strong and links within a line; a mark without its end is text.
fn inline(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        html.push_str(&escape(&rest[..at]));
        rest = &rest[at..];
        let (piece, taken) = span(rest).unwrap_or_else(|| (escape(&rest[..1]), 1));
        html.push_str(&piece);
        rest = &rest[taken..];
    }
    html + &escape(rest)
}

/// The span at the beginning of `text`, and its length there.
fn span(text: &str) -> Option<(String, usize)> {
    if let Some(rest) = text.strip_prefix('`') {
        let end = rest.find('`')?;
        return Some((format!("<code>{}</code>", escape(&rest[..end])), end + 2));
    }
    if let Some(rest) = text.strip_prefix("**") {
        let end = rest.find("**")?;
        return Some((format!("<strong>{}</strong>", escape(&rest[..end])), end + 4));
    }
    let (label, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (link, _) = rest.split_once(')')?;
    let is_safe = !link.contains(':') || link.starts_with("https://");
    let html = if is_safe { format!("<a href=\"{}\">{}</a>", escape(link), escape(label)) } else { escape(label) };
    Some((html, label.len() + link.len() + 4))
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(markdown: &str) -> String {
        let pictures = BTreeMap::from([("a.svg".to_owned(), "<svg/>".to_owned())]);
        let page = html("t", markdown, &pictures);
        let (_, body) = page.split_once("<body>\n").unwrap();
        body.trim_end_matches("</body>\n</html>\n").to_owned()
    }

    #[test]
    fn the_blocks_that_reports_have_are_rendered() {
        assert_eq!(
            body("## A `b`\n\none\ntwo **three**\n"),
            "<h2>A <code>b</code></h2>\n<p>one two <strong>three</strong></p>\n"
        );
        assert_eq!(body("```\na < b\n```\n"), "<pre><code>a &lt; b</code></pre>\n");
        assert_eq!(body("- x\n- y\n"), "<ul><li>x</li><li>y</li></ul>\n");
        assert_eq!(body("![Coverage](a.svg)\n"), "<figure><svg/></figure>\n");
        let table = body("| a | b |\n|---|---:|\n| `x\\|y` | 1 |\n");
        assert!(table.contains("<th>a</th><th class=\"right\">b</th>"), "{table}");
        assert!(table.contains("<td><code>x|y</code></td><td class=\"right\">1</td>"), "{table}");
    }

    #[test]
    fn names_from_a_checkpoint_cannot_write_html() {
        let page = body("| <script>alert(1)</script> | `<b>` |\n\n[x](javascript:alert(1))\n\n**<i>**\n");
        assert!(!page.contains("<script") && !page.contains("<b>") && !page.contains("<i>"), "{page}");
        assert!(!page.contains("javascript:"), "{page}");
    }

    #[test]
    fn every_line_ends_somewhere() {
        for text in ["", "`", "**", "[", "[a](", "```", "|", "||", "#", "#######", "- ", "![a](none.svg)", "* é ` é"]
        {
            assert!(html("t", text, &BTreeMap::new()).ends_with("</html>\n"), "{text}");
        }
    }
}
