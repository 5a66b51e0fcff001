// Saves JSON lines of many steps as one file, within limits; without this script the link saves those of one step.
"use strict";
(() => {
  const link = document.querySelector("a[data-steps]"), line = document.getElementById("saved");
  const MOST = 200_000, MOST_CHARACTERS = 128 * 1024 * 1024;
  const plain = line.textContent;
  let isSaving = false;
  line.textContent = `up to ${MOST.toLocaleString("en")} records from here; Parquet ${plain}`;

  async function collect() {
    const parts = [];
    let next = `${link.getAttribute("href")}&part=1`, count = 0, size = 0, name = "";
    while (next && isSaving) {
      const response = await window.kbroker.ask(next);
      if (!response) return;
      const step = await response.json();
      if (step.is_forward) parts.push(step.text);
      else parts.unshift(step.text);
      count += step.records;
      size += step.text.length;
      next = count < MOST && size < MOST_CHARACTERS ? step.more : null;
      name = step.name;
      line.textContent = `${count.toLocaleString("en")} records, ${step.where}${next ? "; activate the link again to end here" : " saved"}`;
    }
    const file = document.createElement("a");
    file.href = URL.createObjectURL(new Blob(parts, {type: "application/octet-stream"}));
    file.download = name;
    file.click();
    setTimeout(() => URL.revokeObjectURL(file.href), 60_000);
  }

  link.addEventListener("click", async (event) => {
    event.preventDefault();
    if (isSaving) {
      isSaving = false;
      return;
    }
    isSaving = true;
    try { await collect(); } finally { isSaving = false; }
  });
})();
