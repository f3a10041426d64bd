// A part of the page that htmx reads again and again is replaced only where it has changed.
"use strict";
const part = (page) => page.querySelector("[hx-get]") || page.getElementById("job");
let before = part(document).outerHTML;
document.addEventListener("htmx:beforeSwap", (event) => {
  const after = part(new DOMParser().parseFromString(event.detail.xhr.responseText, "text/html"));
  event.detail.shouldSwap = event.detail.xhr.status === 200 && after !== null && after.outerHTML !== before;
  if (event.detail.shouldSwap) before = after.outerHTML;
});
