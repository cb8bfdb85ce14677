// Names and keys that the theme's own parts lack: a dialog's name, and regions that scroll reached by Tab.
addEventListener("DOMContentLoaded", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  for (const scrolling of document.querySelectorAll("pre > code, .md-typeset__scrollwrap")) scrolling.tabIndex = 0;
  const labelled = new MutationObserver(() => {
    for (const [i, nav] of document.querySelectorAll(".md-code__nav:not([aria-label])").entries())
      nav.setAttribute("aria-label", `Code ${i + 1}`);
  });
  labelled.observe(document.body, { childList: true, subtree: true });
});
