//! Sections of a documentation page that test runs write.

/// Puts `text` between `<!-- NAME: ... -->` and `<!-- /NAME -->` of the page that `MS_PARITY_PAGE` names, if it is set.
pub(crate) fn write(name: &str, text: &str) {
    let Ok(path) = std::env::var("MS_PARITY_PAGE") else { return };
    let page = std::fs::read_to_string(&path).unwrap();
    let begin = page.find(&format!("<!-- {name}:")).unwrap();
    let begin = begin + page[begin..].find('\n').unwrap() + 1;
    let end = page.find(&format!("<!-- /{name} -->")).unwrap();
    std::fs::write(&path, format!("{}{text}{}", &page[..begin], &page[end..])).unwrap();
}
