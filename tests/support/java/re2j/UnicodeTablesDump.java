package com.google.re2j;

import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;

/**
 * Printer of the characters of RE2/J's Unicode classes, and of letters with several cases, as lines of numbers.
 *
 * <p>The class is in RE2/J's package because the tables are not public.
 */
public final class UnicodeTablesDump {
    private UnicodeTablesDump() {}

    private static void print(String name, int[][] table) {
        var line = new StringJoiner(" ", "class " + name + " ", "");
        for (int[] range : table) {
            for (int at = range[0]; at <= range[1]; at += range[2]) {
                int last = range[2] == 1 ? range[1] : at;
                line.add(at + "-" + last);
                if (range[2] == 1) {
                    break;
                }
            }
        }
        System.out.println(line);
    }

    public static void main(String[] args) {
        Map<String, int[][]> classes = new TreeMap<>(UnicodeTables.SCRIPTS);
        classes.putAll(UnicodeTables.CATEGORIES);
        classes.forEach(UnicodeTablesDump::print);
        for (int at = Unicode.MIN_FOLD; at <= Unicode.MAX_FOLD; at++) {
            var orbit = new StringJoiner(" ", "orbit ", "");
            int count = 0;
            int smallest = at;
            int one = at;
            do {
                orbit.add(Integer.toString(one));
                smallest = Math.min(smallest, one);
                one = Unicode.simpleFold(one);
                count++;
            } while (one != at && count < 8);
            if (one == at && smallest == at && count > 1) {
                System.out.println(orbit);
            } else if (one != at) {
                System.out.println("endless " + orbit);
            }
        }
    }
}
