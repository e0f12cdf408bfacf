//! Which image a worker runs, and whether the study lets it.
//!
//! The job's image comes first, where the site lets jobs bring one; then the study's, then the site's own. A job's
//! image that is not let in is passed over and said so, never used; when nothing is left the launch is refused with
//! the file to edit.

use crate::study_runtime::ImagePolicy;

/// Who named an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum From {
    /// The job, in `launcher_spec`.
    Job,
    /// The study, in `study_runtime.yaml`.
    Study,
    /// The site, in `parent.yaml`.
    Site,
}

/// What there is to choose from.
#[derive(Debug, Clone, Copy, Default)]
pub struct Candidates<'a> {
    /// The job's.
    pub job: Option<&'a str>,
    /// Whether the site and the submitter's rights let the job bring one.
    pub job_may: bool,
    /// The study's.
    pub study: Option<&'a str>,
    /// The site's.
    pub site: Option<&'a str>,
}

/// The image to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    /// As it was written.
    pub image: String,
    /// By whom.
    pub from: From,
    /// The job's image, when it was passed over.
    pub passed_over: Option<String>,
}

/// Why no image may run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Nobody named one that may run.
    #[error(
        "no image for study {study}: the job brings {job}; set studies.{study}.container.image in {file}"
    )]
    None {
        /// The study.
        study: String,
        /// `none`, or why its image is not let in.
        job: String,
        /// The file to edit.
        file: String,
    },
    /// The study's `images.allow` has no pattern for it.
    #[error("image {image:?} is not allowed for study {study}; allowed: {}", allowed.join(", "))]
    NotAllowed {
        /// As it was written.
        image: String,
        /// The study.
        study: String,
        /// The patterns.
        allowed: Vec<String>,
    },
    /// The study wants a digest.
    #[error("image {image:?} has no digest, which study {study} requires; allowed: name@sha256:<64 digits>")]
    NoDigest {
        /// As it was written.
        image: String,
        /// The study.
        study: String,
    },
    /// A reference now means another image than at first.
    #[error("image {image:?} was {pinned} when it was first used and is {found} now; the study pins images")]
    Moved {
        /// As it was written.
        image: String,
        /// The digest kept.
        pinned: String,
        /// The digest found.
        found: String,
    },
}

/// Chooses the image and checks it against the study's policy. `file` is the study file, for the refusal.
///
/// # Errors
/// When nobody named an image that may run, or the study does not let it.
pub fn choose(
    candidates: &Candidates<'_>,
    policy: &ImagePolicy,
    study: &str,
    file: &str,
) -> Result<Chosen, ImageError> {
    let named = |image: Option<&str>| image.filter(|image| !image.is_empty()).map(str::to_owned);
    let job = named(candidates.job);
    let (allowed, passed_over) = if candidates.job_may { (job, None) } else { (None, job) };
    let chosen = allowed
        .map(|image| (image, From::Job))
        .or_else(|| named(candidates.study).map(|image| (image, From::Study)))
        .or_else(|| named(candidates.site).map(|image| (image, From::Site)));
    let Some((image, from)) = chosen else {
        let job = match passed_over {
            Some(image) => format!("{image:?}, which this site does not let in"),
            None => "none".to_owned(),
        };
        return Err(ImageError::None { study: study.to_owned(), job, file: file.to_owned() });
    };
    check(&image, from, policy, study)?;
    Ok(Chosen { image, from, passed_over })
}

/// Checks an image against the study's policy. A file the site itself names needs no digest.
///
/// # Errors
/// When the study does not let it.
pub fn check(image: &str, from: From, policy: &ImagePolicy, study: &str) -> Result<(), ImageError> {
    if let Some(allow) = &policy.allow
        && !allow.iter().any(|pattern| matches(pattern, image))
    {
        return Err(ImageError::NotAllowed {
            image: image.to_owned(),
            study: study.to_owned(),
            allowed: allow.clone(),
        });
    }
    let own_file = image.starts_with('/') && from != From::Job;
    if policy.require_digest && !own_file && digest(image).is_none() {
        return Err(ImageError::NoDigest { image: image.to_owned(), study: study.to_owned() });
    }
    Ok(())
}

/// The digest of a reference, `sha256:...`.
#[must_use]
pub fn digest(image: &str) -> Option<&str> {
    let (_, digest) = image.rsplit_once('@')?;
    let hex = digest.strip_prefix("sha256:")?;
    let good = hex.len() == 64 && hex.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then_some(digest)
}

/// Whether a text matches a pattern: `*` stands for any run of characters, slashes too; the rest for itself.
#[must_use]
pub fn matches(pattern: &str, image: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| image.strip_prefix(first)) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// What to do with the digest an image has now, where the study pins images: `Some` is to be kept from now on.
///
/// # Errors
/// When another digest was kept.
pub fn pin(
    policy: &ImagePolicy,
    image: &str,
    kept: Option<&str>,
    found: &str,
) -> Result<Option<String>, ImageError> {
    match kept {
        _ if !policy.pin => Ok(None),
        None => Ok(Some(found.to_owned())),
        Some(kept) if kept == found => Ok(None),
        Some(kept) => Err(ImageError::Moved {
            image: image.to_owned(),
            pinned: kept.to_owned(),
            found: found.to_owned(),
        }),
    }
}

/// Whether a text is a pattern of images: printable, without white space, `*` for any run of characters.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Candidates<'static> {
        Candidates { job: Some("j:1"), job_may: true, study: Some("s:1"), site: Some("p:1") }
    }

    #[test]
    fn job_then_study_then_site_then_nothing() {
        let choose =
            |c: Candidates<'_>| choose(&c, &ImagePolicy::default(), "lung", "local/study_runtime.yaml");
        let from = |c| choose(c).map(|chosen| (chosen.image, chosen.passed_over));
        assert_eq!(from(all()), Ok(("j:1".into(), None)));
        assert_eq!(from(Candidates { job_may: false, ..all() }), Ok(("s:1".into(), Some("j:1".into()))));
        assert_eq!(from(Candidates { job: None, study: None, ..all() }), Ok(("p:1".into(), None)));
        assert_eq!(from(Candidates { job: Some(""), ..all() }), Ok(("s:1".into(), None)));
        let none =
            choose(Candidates { job_may: false, study: None, site: None, ..all() }).expect_err("nothing");
        assert_eq!(
            none.to_string(),
            "no image for study lung: the job brings \"j:1\", which this site does not let in; \
             set studies.lung.container.image in local/study_runtime.yaml"
        );
    }

    #[test]
    fn a_study_restricts_its_images() {
        let hex = "0123456789abcdef".repeat(4);
        let pinned = format!("reg.example.org/lung/train@sha256:{hex}");
        let policy = ImagePolicy {
            allow: Some(vec!["reg.example.org/lung/*".into()]),
            require_digest: true,
            pin: true,
        };
        assert_eq!(check(&pinned, From::Job, &policy, "lung"), Ok(()));
        let tag = check("reg.example.org/lung/train:1", From::Job, &policy, "lung").expect_err("a tag");
        assert!(matches!(tag, ImageError::NoDigest { .. }));
        let other =
            check(&format!("evil/x@sha256:{hex}"), From::Study, &policy, "lung").expect_err("foreign");
        assert!(other.to_string().ends_with("allowed: reg.example.org/lung/*"));
        assert_eq!(pin(&policy, "x", None, "sha256:a"), Ok(Some("sha256:a".into())));
        assert_eq!(pin(&policy, "x", Some("sha256:a"), "sha256:a"), Ok(None));
        assert!(pin(&policy, "x", Some("sha256:a"), "sha256:b").is_err());
        let files = ImagePolicy { require_digest: true, ..ImagePolicy::default() };
        assert_eq!(check("/images/lung.sif", From::Study, &files, "lung"), Ok(()));
        assert!(check("/tmp/mine.sif", From::Job, &files, "lung").is_err());
    }

    #[test]
    fn patterns() {
        for (pattern, image, expected) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a*", "ab/c:1", true),
            ("*:1", "x/y:1", true),
            ("a*b*c", "a--b--c", true),
            ("a*b*c", "a--c", false),
            ("*", "", true),
            ("a*a", "a", false),
            ("ab*b", "ab", false),
            ("**", "x", true),
        ] {
            assert_eq!(matches(pattern, image), expected, "{pattern} {image}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_matches_what_it_is_made_of(parts in prop::collection::vec("[ab/]{0,3}", 1..4), fill in "[ab]{0,3}") {
            prop_assert!(matches(&parts.join("*"), &parts.join(&fill)));
        }

        #[test]
        fn nothing_panics(pattern in ".{0,12}", image in ".{0,12}") {
            let _ = (matches(&pattern, &image), digest(&image));
        }
    }
}
