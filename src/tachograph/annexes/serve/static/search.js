"use strict";
// The key / goes to the search box; fields that name something offer names while one types.
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea")) return;
  event.preventDefault();
  document.getElementById("search").focus();
});
for (const field of document.querySelectorAll("input[data-names]")) {
  field.addEventListener("input", async () => {
    const typed = field.value;
    await new Promise((later) => setTimeout(later, 150));
    if (field.value !== typed) return;
    const answer = await fetch(field.dataset.names + encodeURIComponent(typed)).catch(() => null);
    const rows = answer?.ok ? await answer.json() : [];
    field.list.replaceChildren(...rows.map(({ kind, name }) => new Option(kind, name)));
  });
}
