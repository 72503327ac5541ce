// A table that scrolls can be scrolled by keyboard, too. The theme has wrapped it before the page is complete.
window.addEventListener("load", () => {
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0
})
