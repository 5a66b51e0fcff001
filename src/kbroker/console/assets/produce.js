// A typed key unchecks "no key"; the text of a file becomes the value.
"use strict";
(() => {
  const key = document.getElementById("key");
  key?.addEventListener("input", () => { if (key.value) document.querySelector("[name=key_null]").checked = false; });
  const file = document.getElementById("file");
  if (!file) return;
  document.getElementById("from-file").hidden = false;
  const value = document.getElementById("value"), MOST = 40000;
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    const text = await file.files[0].text();
    file.setCustomValidity(text.length > MOST ? `Expected at most ${MOST.toLocaleString("en")} characters, got ${text.length.toLocaleString("en")}.` : "");
    file.reportValidity();
    if (text.length <= MOST) value.value = text;
  });
})();
