// Puts the text of a file into the field of the value.
"use strict";
(() => {
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
