//! Kernels that were compiled before this crate was built, and are part of it (see `build.rs`).
//!
//! One is used only if it was made from this crate's sources, with its flags, for a GPU like the one
//! at hand; which NVRTC made it does not matter.

use super::kernels::{Instance, common_flags};
use super::nvrtc::Text;

/// What a folder of compiled kernels holds.
#[derive(Debug)]
pub(super) struct Embed {
    /// Flags of every compilation, but for the target and the parameters, separated by spaces.
    pub flags: &'static str,
    /// The sources that they were made from, by file name.
    pub texts: &'static [Text<'static>],
    pub entries: &'static [Entry],
}

/// One kernel.
#[derive(Debug)]
pub(super) struct Entry {
    /// Compute capability that it was compiled for: 90 for 9.0.
    pub arch: u32,
    /// It runs on this one only, and not on later ones of its major number.
    pub exact: bool,
    pub kernel: &'static str,
    /// `NAME=VALUE` for each parameter, sorted, separated by spaces.
    pub defines: &'static str,
    pub code: &'static [u8],
}

/// What this build has.
#[cfg(sgemm_bi_embed)]
pub(super) static EMBED: Embed = include!(concat!(env!("OUT_DIR"), "/embed.rs"));

/// What this build has: nothing.
#[cfg(not(sgemm_bi_embed))]
pub(super) static EMBED: Embed = Embed {
    flags: "",
    texts: &[],
    entries: &[],
};

impl Embed {
    /// Whether there is anything.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The code of an instance, whose source includes `headers`, for a GPU of compute capability
    /// `arch`. Without it, the reason in words.
    pub fn find(
        &self,
        instance: &Instance,
        headers: &[Text<'_>],
        arch: u32,
    ) -> Result<&'static [u8], String> {
        if !self.is_of(instance, headers) {
            let name = instance.source.name;
            return Err(format!("they were made from other sources of `{name}`"));
        }
        let defines = sorted(instance);
        let entries = self.entries.iter().filter(|entry| {
            entry.kernel == instance.entry && entry.defines == defines && entry.runs_on(arch)
        });
        // The nearest one.
        match entries.max_by_key(|entry| entry.arch) {
            Some(entry) => Ok(entry.code),
            None => Err(format!("none of them is `{instance}` for sm_{arch}")),
        }
    }

    /// Whether an instance's texts and flags, but for its parameters and the target, are what these
    /// kernels were made from.
    fn is_of(&self, instance: &Instance, headers: &[Text<'_>]) -> bool {
        let file = format!("{}.cu", instance.source.name);
        let source = (file.as_str(), instance.source.text);
        self.texts.contains(&source) && self.has(headers)
    }

    /// Whether headers and common flags are.
    fn has(&self, headers: &[Text<'_>]) -> bool {
        let mut headers = headers.iter();
        headers.all(|header| self.texts.contains(header)) && self.flags == common_flags().join(" ")
    }

    /// What there is for a GPU, in words.
    pub fn describe(&self, headers: &[Text<'_>], arch: u32) -> String {
        if !self.has(headers) {
            return "the embedded kernels were made from other sources".into();
        }
        let entries = self.entries.iter();
        let count = entries.filter(|entry| entry.runs_on(arch)).count();
        format!("{count} embedded kernels")
    }
}

impl Entry {
    fn runs_on(&self, arch: u32) -> bool {
        match self.exact {
            true => self.arch == arch,
            false => self.arch / 10 == arch / 10 && self.arch <= arch,
        }
    }
}

fn sorted(instance: &Instance) -> String {
    let defines = instance.defines.iter();
    let mut defines: Vec<_> = defines.map(|(name, value)| (name, value)).collect();
    defines.sort_unstable();
    let words = defines
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
